//! An agent that ends by itself (script.sh): exit code and log are judged as in every scenario.

use crate::scenarios::{Refused, Scenario};

impl Scenario for Refused {}

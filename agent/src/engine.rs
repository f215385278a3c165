//! Carries steps out, with the intent in the journal before the act, and undoes them.

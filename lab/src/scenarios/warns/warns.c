// SPDX-License-Identifier: MIT OR GPL-2.0
// Control of the judge of kernel logs: a module that warns once when it is loaded.
#include <linux/module.h>

static noinline void provoke(void) { WARN(1, "provoked\n"); }
static int __init warn(void) { provoke(); return 0; }
static void __exit end(void) { }
module_init(warn);
module_exit(end);
MODULE_LICENSE("Dual MIT/GPL");
MODULE_DESCRIPTION("provokes a warning of the kernel");

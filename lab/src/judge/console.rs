//! The serial console: kernel faults, and the guest's verdict line.

/// Texts that a kernel prints at a serious fault, at the beginning of a word.
const TROUBLE: &[&str] = &[
    // kernel/panic.c, lib/bug.c, arch/x86/kernel/dumpstack.c. Each WARN and BUG has the first two.
    "[ cut here ]",
    "---[ end trace ",
    "Call Trace:",
    "Kernel panic",
    "BUG: ",
    "Oops: ",
    "[#1] ", // of `divide error: 0000 [#1] PREEMPT SMP`: the first fault of any kind
    "kernel BUG at",
    "general protection fault",
    "PANIC: double fault",
    // Reference counts, lists and memory: lib/refcount.c, lib/list_debug.c, mm.
    "refcount_t: ",
    "list_add corruption",
    "list_add double add",
    "list_del corruption",
    "UBSAN: ",
    "KASAN: ",
    "KFENCE: ",
    "Slab cache still has objects",
    "Object already free",
    "Freelist corrupt",
    "Freechain corrupt",
    "Freepointer corrupt",
    "Redzone overwritten",
    "Poison overwritten",
    "Padding overwritten",
    "slab: double free detected",
    "page allocation failure",
    "Kernel memory exposure attempt",
    "Kernel memory overwrite attempt",
    "Out of memory:",
    // Locks and waits: kernel/locking, kernel/rcu, kernel/hung_task.c, kernel/sched, kernel/watchdog.c.
    "blocked for more than",
    "blocked in I/O wait for more than",
    "detected stall", // of `self-detected stall on CPU` and of `detected stalls on CPUs/tasks`
    "detected expedited stalls",
    "kthread starved for",
    "hard LOCKUP",
    "scheduling while atomic",
    "scheduling from the idle thread",
    "sleeping function called from invalid context",
    "trying to register non-static key",
    "possible recursive locking",
    "possible circular locking",
    "lock inversion dependency",
    "inconsistent lock state",
    "bad unlock balance",
    "suspicious RCU",
    "suspicious rcu_dereference",
    "INFO: lockdep is turned off",
    // kernel/module, fs/sysfs
    "Unknown symbol",
    "disagrees about version of symbol",
    "cannot create duplicate filename",
    "kobject_add_internal failed",
    "exports duplicate symbol",
    "no symbol version for",
    "version magic",
    "Invalid relocation target",
    // Interrupts, file systems, debugfs, network
    "Flags mismatch irq",
    "EXT4-fs error",
    "already present!", // of `debugfs: Directory 'nvidia' with parent '/' already present!`
    "unregister_netdevice: waiting for",
    // Programs: arch/x86/mm/fault.c, arch/x86/kernel/traps.c
    "segfault at",
    "trap invalid opcode",
    "trap divide error",
];

/// True if a console line reports a kernel fault.
pub(crate) fn is_trouble(line: &str) -> bool {
    let has_text = TROUBLE.iter().any(|text| {
        let begins_a_word = |at: usize| !line[..at].ends_with(|c: char| c.is_ascii_alphanumeric());
        line.match_indices(text).any(|(at, _)| begins_a_word(at))
    });
    has_text || is_warning(line) || is_slab(line)
}

/// True of the first line of a WARN (`__warn()` in kernel/panic.c): `WARNING: CPU: 0 PID: 7 at FILE:LINE FUNCTION`,
/// and from Linux 6.19 on `WARNING: FILE:LINE at FUNCTION, CPU#0: COMM/PID`. Programs begin lines with `WARNING: `, too.
fn is_warning(line: &str) -> bool {
    let Some((_, rest)) = line.split_once("WARNING: ") else { return false };
    if rest.starts_with("CPU: ") {
        return true;
    }
    let Some((place, task)) = rest.rsplit_once(", CPU#") else { return false };
    let is_place = place.starts_with("at ") || place.contains(" at ");
    is_place && task.split_once(": ").is_some_and(|(cpu, _)| cpu.parse::<u32>().is_ok())
}

/// True of a slab's fault (`slab_bug()` in mm/slub.c): `BUG nvidia_stack_cache (Tainted: P): Objects remaining`.
fn is_slab(line: &str) -> bool {
    let Some((before, rest)) = line.split_once("BUG ") else { return false };
    let state = rest.split_once(' ').map_or("", |(_cache, state)| state);
    !before.ends_with(|c: char| c.is_ascii_alphanumeric())
        && (state.starts_with("(Tainted: ") || state.starts_with("(Not tainted)"))
}

/// Parses nonce and exit code of a verdict line, `MATRIX-VERDICT NONCE CODE`. Kernel messages may
/// precede it in the same line.
pub(crate) fn verdict(line: &str) -> Option<(String, i32)> {
    let mut words = line.split_once("MATRIX-VERDICT ")?.1.split_whitespace();
    let nonce = words.next()?;
    let code = words.next()?.parse().ok()?;
    words.next().is_none().then(|| (nonce.to_owned(), code))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines of kernels, one for each text at least.
    const FAULTS: &[&str] = &[
        "[    5.1] ------------[ cut here ]------------",
        "[    5.1] WARNING: CPU: 0 PID: 7 at kernel/sched/core.c:8511 sched_init+0x20/0x410",
        "[    5.1] WARNING: CPU: 1 PID: 612 at nv_open+0x5/0x10 [nvidia]",
        "[    5.1] WARNING: lib/refcount.c:28 at refcount_warn_saturate+0xd8/0xe0, CPU#0: modprobe/612",
        "[    5.1] WARNING: [ptr == 0 && 1] kernel/sched/core.c:8511 at sched_init+0x20/0x410, CPU#0: swapper/0",
        "[    5.1] WARNING: at nv_open+0x5/0x10 [nvidia], CPU#11: kworker/u4:1/33",
        "[    5.1] ---[ end trace 0000000000000000 ]---",
        "[    5.1] Call Trace:",
        "[    1.0] Kernel panic - not syncing: Attempted to kill init!",
        "[    9.1] BUG: unable to handle page fault for address: 0000000000000010",
        "[    9.1] watchdog: BUG: soft lockup - CPU#0 stuck for 26s! [modprobe:612]",
        "[    9.1] Oops: 0002 [#1] PREEMPT SMP NOPTI",
        "[    9.1] Oops: Oops: 0002 [#1] SMP NOPTI",
        "[    9.1] divide error: 0000 [#1] PREEMPT SMP NOPTI",
        "[    9.1] kernel BUG at lib/list_debug.c:23!",
        "[    9.1] general protection fault, probably for non-canonical address 0xdead000000000108",
        "[    9.1] traps: PANIC: double fault, error_code: 0x0",
        "[    9.1] refcount_t: underflow; use-after-free.",
        "[    9.1] list_add corruption. next->prev should be prev (ffff), but was 0000. (next=ffff).",
        "[    9.1] list_add double add: new=ffff, prev=ffff, next=ffff.",
        "[    9.1] list_del corruption. prev->next should be ffff, but was dead. (prev=ffff)",
        "[    9.1] UBSAN: array-index-out-of-bounds in /b/nvidia-uvm/uvm_pmm_gpu.c:2364:35",
        "[    9.1] BUG: KASAN: slab-out-of-bounds in nv_open+0x5/0x10 [nvidia]",
        "[    9.1] KASAN: null-ptr-deref in range [0x0000000000000010-0x0000000000000017]",
        "[    9.1] BUG: KFENCE: use-after-free read in nv_open+0x5/0x10 [nvidia]",
        "[    9.1] BUG nvidia_stack_cache (Tainted: P): Objects remaining",
        "[    9.1] BUG kmalloc-64 (Not tainted): Right Redzone overwritten",
        "[    9.1] kmem_cache_destroy nvidia_stack_cache: Slab cache still has objects when called from x",
        "[    9.1] BUG kmalloc-64 (Tainted: G    B): Object already free",
        "[    9.1] FIX kmalloc-64: Freelist corrupt",
        "[    9.1] BUG kmalloc-64 (Not tainted): Freechain corrupt",
        "[    9.1] BUG kmalloc-64 (Not tainted): Freepointer corrupt",
        "[    9.1] BUG kmalloc-64 (Not tainted): Poison overwritten",
        "[    9.1] BUG kmalloc-64 (Not tainted): Padding overwritten. 0xffff-0xffff @offset=4",
        "[    9.1] slab: double free detected in cache 'kmalloc-64', objp ffff",
        "[    9.1] modprobe: page allocation failure: order:10, mode:0x40cc0(GFP_KERNEL), nodemask=(null)",
        "[    9.1] usercopy: Kernel memory exposure attempt detected from SLUB object 'nvidia' (offset 0, size 9)!",
        "[    9.1] usercopy: Kernel memory overwrite attempt detected to SLUB object 'nvidia' (offset 0, size 9)!",
        "[    9.1] Out of memory: Killed process 612 (longshore) total-vm:9kB",
        "[  121.1] INFO: task modprobe:612 blocked for more than 120 seconds.",
        "[  121.1] INFO: task modprobe:612 blocked in I/O wait for more than 120 seconds.",
        "[   29.1] rcu: INFO: rcu_preempt self-detected stall on CPU",
        "[   29.1] rcu: INFO: rcu_sched detected stalls on CPUs/tasks:",
        "[   29.1] rcu: INFO: rcu_preempt detected expedited stalls on CPUs/tasks: { 1-... }",
        "[   29.1] rcu: rcu_sched kthread starved for 5250 jiffies! g-1199 f0x0 RCU_GP_WAIT_FQS(5)",
        "[   29.1] NMI watchdog: Watchdog detected hard LOCKUP on cpu 0",
        "[    9.1] BUG: scheduling while atomic: modprobe/612/0x00000002",
        "[    9.1] bad: scheduling from the idle thread!",
        "[    9.1] BUG: sleeping function called from invalid context at mm/slab.h:494",
        "[    9.1] INFO: trying to register non-static key.",
        "[    9.1] WARNING: possible recursive locking detected",
        "[    9.1] WARNING: possible circular locking dependency detected",
        "[    9.1] WARNING: possible irq lock inversion dependency detected",
        "[    9.1] WARNING: inconsistent lock state",
        "[    9.1] WARNING: bad unlock balance detected!",
        "[    9.1] INFO: suspicious RCU usage",
        "[    9.1] include/linux/rhashtable.h:600 suspicious rcu_dereference_check() usage!",
        "[    9.1] INFO: lockdep is turned off.",
        "[    5.5] nvidia: Unknown symbol drm_open (err -2)",
        "[    5.5] nvidia: disagrees about version of symbol module_layout",
        "[    5.5] sysfs: cannot create duplicate filename '/class/nvidia'",
        "[    5.5] kobject: kobject_add_internal failed for nvidia with -EEXIST, don't try to register things",
        "[    5.5] nvidia_uvm: exports duplicate symbol nvUvmInterfaceInitialize (owned by nvidia)",
        "[    5.5] nvidia: no symbol version for module_layout",
        "[    5.5] nvidia: version magic '6.1.0 SMP mod_unload ' should be '6.1.1 SMP mod_unload '",
        "[    5.5] x86/modules: Invalid relocation target, existing value is nonzero for type 1",
        "[    5.5] genirq: Flags mismatch irq 11. 00000080 (nvidia) vs. 00000000 (ata_piix)",
        "[    5.5] EXT4-fs error (device vdd): ext4_lookup:1858: inode #2: comm longshore: iget: bad",
        "[    5.5] debugfs: Directory 'nvidia' with parent '/' already present!",
        "[    5.5] unregister_netdevice: waiting for lo to become free. Usage count = 2",
        "[    5.5] nvidia-persiste[612]: segfault at 8 ip 00007f sp 00007f error 4 in libnvidia-cfg.so.1",
        "[    5.5] traps: longshore[612] trap invalid opcode ip:55d sp:7ff error:0 in longshore",
        "[    5.5] traps: longshore[612] trap divide error ip:55d sp:7ff error:0 in longshore",
    ];

    #[test]
    fn each_kind_of_trouble_is_found() {
        for line in FAULTS {
            assert!(is_trouble(line), "{line}");
        }
        for text in TROUBLE {
            assert!(FAULTS.iter().any(|line| line.contains(text)), "no line has {text}");
        }
    }

    #[test]
    fn ordinary_lines_are_no_trouble() {
        for line in [
            "[    0.0] DEBUG: nothing",
            "[    0.0] DEBUG pool (Not tainted): nothing",
            "[    0.0] ACPI BIOS Error (bug): Could not resolve symbol [\\_SB], AE_NOT_FOUND",
            "[    0.0] [Firmware Bug]: TSC doesn't count with P0 frequency!",
            "[    0.0] Spectre V2 : WARNING: Unprivileged eBPF is enabled with eIBRS on",
            "[    0.0] kfence: initialized - using 2097152 bytes for 255 objects at 0xffff-0xffff",
            "[    0.0] rcu: Preemptible hierarchical RCU implementation.",
            "[    0.0] rcu: \tRCU calculated value of scheduler-enlistment delay is 25 jiffies.",
            "[    0.4] NMI watchdog: Perf NMI watchdog permanently disabled",
            "[    1.0] random: crng init done",
            "WARNING: the package's lists are 3 days old",
            "WARNING: looking at the store, which no agent has opened",
            "WARNING: 2 at most, CPU#: none",
            "Warning: CPU: none",
            "report this BUG to the maintainers (all of them)",
            "NVRM: loading NVIDIA UNIX Open Kernel Module",
            "NVRM: GPU 0000:00:02.0: RmInitAdapter failed! (0x22:0x38:762)",
            "NVRM: nvidia_open... WARNING: the adapter does not answer",
            "nvidia-modeset: WARNING: GPU:0: Unable to read EDID for display device",
            "nvidia: loading out-of-tree module taints kernel.",
            "nvidia: module verification failed: signature and/or required key missing - tainting kernel",
        ] {
            assert!(!is_trouble(line), "{line}");
        }
    }

    #[test]
    fn verdicts_are_whole_or_nothing() {
        assert_eq!(verdict("[ 9.1] x MATRIX-VERDICT ab12 0"), Some(("ab12".into(), 0)));
        for line in ["MATRIX-VERDICT ab12", "MATRIX-VERDICT ab12 x", "MATRIX-VERDICT a 0 0", "a 0"]
        {
            assert_eq!(verdict(line), None, "{line}");
        }
    }
}

# shellcheck shell=sh
# A kernel whose integrity policy (IMA) loads no module but from a file with the right digest in its attribute
# security.ima: the agent is refused, then an administrator gives the store's modules theirs, and the agent starts
# again. The kernel's own modules, which a distribution would have signed, are exempt.
# shellcheck source-path=SCRIPTDIR/../../guest/scripts source=lib.sh
. /run/matrix/lib.sh
# shellcheck source=ready.sh
. /run/matrix/ready.sh

# appraise: loads the policy. Debian's kernels take it once (CONFIG_IMA_WRITE_POLICY is not set).
appraise() {
    mount -t securityfs securityfs /sys/kernel/security
    modules=$(findmnt -no SOURCE /usr/lib/modules)
    cat >/run/matrix/policy <<END
dont_appraise func=MODULE_CHECK fsuuid=$(blkid -s UUID -o value "$modules")
appraise func=MODULE_CHECK
END
    cat /run/matrix/policy >/sys/kernel/security/ima/policy
}

# Gives each blob of the store its digest (IMA_XATTR_DIGEST_NG of sha256, security/integrity/integrity.h); a
# blob's name is its digest.
# shellcheck disable=SC2016
give_digests() {
    perl -e 'foreach my $path (@ARGV) {
        my ($hex) = $path =~ m{/([0-9a-f]{64})$} or next;
        my ($name, $value) = ("security.ima\0", pack("CCH*", 4, 4, $hex));
        syscall(188, "$path\0", $name, $value, length $value, 0) == 0 or die "$path: $!\n";
        print "labelled\n";
    }' /var/lib/longshore/blobs/sha256/*
}

# run_agent WHEN: runs an agent until it is Ready or has ended, and reports the end.
run_agent() {
    start_agent
    if await has_phase ready; then
        fact "$1.end" ready
        return 0
    fi
    code=0
    wait "$RUN" || code=$?
    fact "$1.end" "$code"
    section "$1.log" cat /run/matrix/agent.log
    await_engine
    state "$1"
    section "$1.kernel" grep -i integrity /run/matrix/dmesg
    return 1
}

# The kernel's own refusal of a file without the attribute.
refused_by_kernel() {
    dmesg >/run/matrix/dmesg
    grep -E 'op=appraise_data|impossible to appraise' /run/matrix/dmesg
}

prepare
appraise
state before
phase unlabelled
# Its refusal is reported, and judged there.
run_agent unlabelled || true
section unlabelled.refused refused_by_kernel
section labelled.blobs give_digests
phase labelled
# Its end is reported, and judged there.
run_agent labelled || true
if running; then
    phase ready
    report_ready ready
    phase terminate
    stop_agent
    finish_agent
fi
after

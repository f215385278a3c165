# shellcheck shell=sh
# Manifests: a line for each file of a directory tree, and one for the digest of each small file. Sourced by lib.sh.

# Largest file whose digest is taken, in KiB: an emulated processor needs seconds for those of 64 KiB. A change of a larger
# one shows by its inode.
SMALL=16
# Disk of the engine's containers, which has room for both manifests of the root file system.
MANIFESTS=/var/lib/containers
# Directory of the files that the guest itself changes in every way that the comparison must find: the harness requires these
# differences.
OWN_CHANGES=/var/lib/matrix

# list_files ARGUMENT...: prints `TYPE MODE UID:GID SIZE PATH` of each file that find finds by these arguments, the
# number of a node instead of its size, and the target of a link at the end. A directory has no size: its file
# system's is not that of its entries alone.
list_files() {
    find "$@" \( \
        -type f -printf 'f %m %U:%G %s %p\n' \( -size +${SMALL}k -o -exec sha256sum {} + \) \
        -o -type l -printf 'l %m %U:%G - %p %l\n' \
        -o -type c -exec stat -c 'c %a %u:%g %Hr:%Lr %n' {} + \
        -o -type b -exec stat -c 'b %a %u:%g %Hr:%Lr %n' {} + \
        -o -printf '%y %m %U:%G - %p\n' \)
}

# tree ARGUMENT...: prints a manifest, and its exit code in the last line.
tree() {
    tree_code=0
    list_files "$@" || tree_code=$?
    echo "rc $tree_code"
}

# take_root WHEN: writes the manifest of the root file system, and reports its exit code and its lines. The store's mount
# point is the agent's, which makes it private.
take_root() {
    root_code=0
    list_files / -xdev -path /var/lib/longshore -prune -o >$MANIFESTS/unsorted 2>&1 || root_code=$?
    LC_ALL=C sort $MANIFESTS/unsorted >"$MANIFESTS/root-$1" || root_code=$?
    fact "$1.root" "$root_code $(wc -l <"$MANIFESTS/root-$1")"
}

# root_before: makes the control's files, and takes the manifest before the agent.
root_before() {
    mkdir -p $OWN_CHANGES
    echo before >$OWN_CHANGES/changed
    : >$OWN_CHANGES/owned
    : >$OWN_CHANGES/removed
    mknod $OWN_CHANGES/node c 1 3
    ln -s before $OWN_CHANGES/link
    take_root before
    touch /run/matrix/mark
}

# root_after: reports the files of the root file system whose inode changed since; then changes the control's, takes
# the manifest again and reports the differences.
root_after() {
    section after.written find / -xdev -cnewer /run/matrix/mark ! -type d -print
    echo after! >$OWN_CHANGES/changed
    chown 1:1 $OWN_CHANGES/owned
    rm $OWN_CHANGES/removed $OWN_CHANGES/node
    mknod $OWN_CHANGES/node c 1 5
    ln -sfn after! $OWN_CHANGES/link
    take_root after
    root_code=0
    LC_ALL=C comm -3 $MANIFESTS/root-before $MANIFESTS/root-after >$MANIFESTS/differences || root_code=$?
    fact after.compared "$root_code"
    fact after.tainted "$(cat /proc/sys/kernel/tainted)"
    section after.root cat $MANIFESTS/differences
}

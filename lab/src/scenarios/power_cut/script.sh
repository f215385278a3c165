# shellcheck shell=sh
# One boot between two losses of power. First the state after the last one is recorded, and the
# agent must become Ready with it and uninstall again; then the store is filled or the driver is
# installed until the point that CUT names, at which the power goes off.
# shellcheck source-path=SCRIPTDIR/../../guest/scripts source=lib.sh
. /run/matrix/lib.sh
# shellcheck source=ready.sh
. /run/matrix/ready.sh
# shellcheck source=events.sh
. /run/matrix/events.sh

STORE=/var/lib/longshore
# Beside the store's own files: one that is known to have reached the disk, and one that is known
# not to have.
CONTROL=$STORE/lost+found

# Lists files whose content differs from the digest in their name, as computed by sha256sum.
misnamed() {
    find $STORE/blobs/sha256 -type f | while read -r file; do
        sum=$(sha256sum <"$file")
        [ "${sum%% *}" = "${file##*/}" ] || echo "$file"
    done
}

# Counts the store's finished entries, and its unfinished ones.
named() {
    for dir in blobs/sha256 userspace sets tmp; do
        echo "$dir $(find "$STORE/$dir" -mindepth 1 -maxdepth 1 2>/dev/null | wc -l)"
    done
}

recover() {
    phase recover
    section cut.synced cat "$CONTROL/synced"
    section cut.unsynced cat "$CONTROL/unsynced"
    section cut.named named
    section cut.misnamed misnamed
    code=0
    # shellcheck disable=SC2086
    contain $IMAGE store verify >/run/matrix/verify.log 2>&1 || code=$?
    fact cut.verify "$code"
    section cut.verify-log cat /run/matrix/verify.log
    rm -f "$CONTROL/synced" "$CONTROL/unsynced"
    case $AFTER in
        import-*) import ;;
    esac
    now
    begun=$NOW
    start_agent
    if await has_phase ready; then
        phase ready
        now
        fact recovery "start $begun $NOW"
        report_ready ready
        phase terminate
        terminate
    fi
    finish_agent
    after
}

# cut_power: writes a file that nothing syncs. Only the harness can end a machine so that its disk
# loses unflushed writes; until it does, nothing else gets the processor.
cut_power() {
    echo unsynced >"$CONTROL/unsynced"
    phase cut
    while :; do :; done
}

# empty_store: empties the store as at first; its blocks are discarded on the disk (fstrim), too.
empty_store() {
    find $STORE -mindepth 1 -maxdepth 1 ! -name lost+found -exec rm -rf {} +
    sync
    fstrim $STORE
}

# importing DIR: imports until the first entry is in a directory of the store.
importing() {
    empty_store
    mkdir -p "$STORE/$1"
    watch "$STORE/$1"
    echo synced >"$CONTROL/synced"
    sync
    hasten
    (
        import || true
        echo ENDED >"$EVENTS"
    ) &
    while read -r EVENT <&4; do
        case $EVENT in
            MOVED_TO*) cut_power ;;
            ENDED) return 1 ;;
        esac
    done
}

# installing POINT...: installs until a point.
installing() {
    COUNT=0
    start_watched
    echo synced >"$CONTROL/synced"
    sync
    "$@"
    hasten
    cut_power
}

# at_intent TEXT: waits until the journal has this intent.
at_intent() {
    # The children that read the journal get this shell's priority, too.
    chrt -f -p 50 $$
    while next_event; do
        [ "$EVENT" != 'MOVED_TO state.json' ] || ! grep -q "$1" "$STATE" || return 0
    done
    return 1
}

at_ready() { await has_phase ready; }

prepare
state before
[ -z "$AFTER" ] || recover
case $CUT in
    import-module) importing blobs/sha256 ;;
    import-tree) importing userspace ;;
    import-set) importing sets ;;
    intent) installing at_intent '"name": "nvidia"' ;;
    loading) installing loading nvidia ;;
    ready) installing at_ready ;;
esac

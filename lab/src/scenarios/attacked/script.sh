# shellcheck shell=sh
# An unprivileged user of the host, and an unprivileged container that has /run/nvidia mounted, try
# to delay, mislead and take over the agent from before its start until after its end.
# shellcheck source-path=SCRIPTDIR/../../guest/scripts source=lib.sh
. /run/matrix/lib.sh
# shellcheck source=ready.sh
. /run/matrix/ready.sh

ATTACK=/tmp/attack

# The user's attempts, repeated until $ATTACK/over exists. Each line of $ATTACK/user is one that had
# an effect: `locked PATH`, `read PATH`, `wrote PATH`, `signalled PROCESS`, `entered PROCESS`, after
# `early` while no agent has opened the store yet, whose directory is then open to everybody, else
# after `late`. Each line of $ATTACK/rounds is a round that came to its end, and each of $ATTACK/tried a process that
# withstood.
user_attempts() {
    cat <<'END'
cd /tmp/attack
held=0
found() { echo "$when $1 $2" >>user; }
while [ ! -e over ]; do
    when=early
    [ ! -e opened ] || when=late
    for place in $(find /var/lib/longshore /run/longshore /run/nvidia -maxdepth 3 -path /run/nvidia/driver/sys -prune -o -print 2>/dev/null | head -n 200); do
        if [ -f "$place" ] && [ "${place#/run/nvidia/driver}" = "$place" ]; then
            cat "$place" >/dev/null 2>&1 && found read "$place"
        fi
        if [ -d "$place" ]; then
            (: >"$place/attack") 2>/dev/null && found wrote "$place"
            ln -s /etc/passwd "$place/state.json.next" 2>/dev/null && found wrote "$place"
        fi
        # No device: a process with one open uses the driver, as every user may.
        if [ -d "$place" ] || [ -f "$place" ]; then
            if [ -r "$place" ] && flock -n -x "$place" true 2>/dev/null; then
                found locked "$place"
                if [ $held -lt 40 ]; then
                    held=$((held + 1))
                    # The container may have removed it.
                    flock -x "$place" sleep 600 2>/dev/null &
                fi
            fi
        fi
    done
    for process in /proc/[0-9]*; do
        read -r name 2>/dev/null <"$process/comm" || continue
        case $name in
            longshore | make | cc1 | gcc* | x86_64-linux-gn* | ld* | as | sh | nvidia-persiste)
                pid=${process#/proc/}
                [ "$(stat -c %u "$process" 2>/dev/null)" = "$(id -u)" ] && continue
                kill -0 "$pid" 2>/dev/null && found signalled "$name"
                ls "$process/root/build" >/dev/null 2>&1 && found entered "$name"
                cat "$process/environ" >/dev/null 2>&1 && found entered "$name"
                # One that had ended meanwhile withstood nothing.
                [ -e "$process" ] && echo "$when $name" >>tried
                ;;
        esac
    done
    echo "$when" >>rounds
    sleep 2
done
END
}

# The container's attempts. Each line that it prints is one that had an effect on files that the
# agent exposes, `wrote PATH`, `removed PATH` and `replaced PATH`, or a round that came to its end, with a forged journal
# in its place: `round exposed` while the driver root is there, else `round early`. The journals name by turns a file
# of the kernel's and one of the host's, and, as undone on a new node, a pod's directory of firmware and a node of
# another driver.
container_attempts() {
    cat <<'END'
own=/run/nvidia/longshore
root=/run/nvidia/driver
try() { (: >"$1") 2>/dev/null && echo "wrote $root/$1"; }
forge() {
    mkdir -p $own
    if [ $((rounds % 2)) = 1 ]; then
        echo "{\"format\":2,\"boot_id\":null,\"agent\":1,\"phase\":\"ready\",\"plan\":null,\"entries\":[
        {\"seq\":1,\"step\":{\"do\":\"write-parameter\",\"path\":\"/sys/module/firmware_class/parameters/path\",
          \"value\":\"$root/lib/firmware\"},\"before\":{\"was\":\"value\",
          \"value\":\"/var/lib/kubelet/pods/1/volumes/kubernetes.io~empty-dir/fw\"},\"state\":\"done\"},
        {\"seq\":2,\"step\":{\"do\":\"make-nodes\",\"dirs\":[\"/dev\"]},\"before\":{\"was\":\"nodes\",
          \"missing_dirs\":[],\"nodes\":[{\"path\":\"/dev/nvidia9\",
          \"made\":{\"major\":195,\"minor\":9,\"mode\":438},
          \"was\":{\"major\":243,\"minor\":1,\"mode\":511}}]},\"state\":\"done\"}]}" >$own/forged
    else
        echo "{\"format\":2,\"boot_id\":\"$1\",\"agent\":1,\"phase\":\"ready\",\"plan\":null,\"entries\":[
        {\"seq\":1,\"step\":{\"do\":\"write-parameter\",\"path\":\"/proc/sys/kernel/core_pattern\",\"value\":\"core\"},
         \"before\":{\"was\":\"value\",\"value\":\"|/evil\"},\"state\":\"done\"},
        {\"seq\":2,\"step\":{\"do\":\"make-dir\",\"path\":\"/etc/ssl\"},
         \"before\":{\"was\":\"nothing\"},\"state\":\"done\"}]}" >$own/forged
    fi
    busybox chmod 600 $own/forged
    mv -f $own/forged $own/state.json
}
boot=$(cat /proc/sys/kernel/random/boot_id)
rounds=0
while :; do
    rounds=$((rounds + 1))
    forge "$boot"
    rm -f $own/last-failure.json $own/lock
    busybox ln -s /etc/passwd $own/last-failure.json 2>/dev/null
    busybox mkfifo $own/lock 2>/dev/null
    # A working directory stays in the mounted root; once that is unmounted, its path names the directory below it,
    # into which everybody with /run/nvidia may write.
    if cd $root 2>/dev/null && [ -e usr ]; then
        for file in usr/lib/x86_64-linux-gnu/libkmod.so.2 usr/lib/x86_64-linux-gnu/libc.so.6 \
            usr/bin/nvidia-smi lib/firmware/attack usr/attack attack; do
            try $file
        done
        rm usr/bin/nvidia-smi 2>/dev/null && echo "removed $root/usr/bin/nvidia-smi"
        for link in run/nvidia-fabricmanager/fabricmanager.cfg run/fabricmanager.cfg; do
            busybox ln -s /etc/passwd $link 2>/dev/null
        done
        # Settings and state of the daemons: none may be here, where another file can take their place.
        for file in run/*.cfg run/*.conf run/*.state run/*/*.cfg run/*/*.conf run/*/*.state; do
            if [ -f "$file" ] && [ ! -L "$file" ]; then
                echo attack >$own/replacement && mv -f $own/replacement "$file" && echo "replaced $root/$file"
            fi
        done
        [ -s $own/state.json ] && echo "round exposed"
    elif [ -s $own/state.json ]; then
        echo "round early"
    fi
    cd /
    busybox sleep 1
done
END
}

start_attacks() {
    mkdir -p $ATTACK
    chmod 777 $ATTACK
    for file in user rounds tried flood; do
        : >$ATTACK/$file
        chmod 666 $ATTACK/$file
    done
    user_attempts >$ATTACK/user.sh
    container_attempts >$ATTACK/container.sh
    setpriv --reuid 65534 --regid 65534 --clear-groups sh $ATTACK/user.sh >$ATTACK/user.log 2>&1 &
    USER_JOB=$!
    # Processes that carry a daemon's mark, as far as a user can know it.
    LONGSHORE_DAEMON=00000000000000000000000000000000 \
        setpriv --reuid 65534 --regid 65534 --clear-groups sleep 86400 &
    MARKED=$!
    # shellcheck disable=SC2086
    pod run --detach --name attacker --network none -v /run/nvidia:/run/nvidia:rslave \
        -v $ATTACK:$ATTACK:ro --entrypoint /bin/sh $IMAGE $ATTACK/container.sh >/dev/null
}

# Sixteen connections at a time that request the metrics, with their answers counted, and beside them a probe that must
# be answered.
flood() {
    FLOOD=
    # shellcheck disable=SC2016
    for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16; do
        setpriv --reuid 65534 --regid 65534 --clear-groups bash -c '
            for n in {1..20}; do
                exec 4<>/dev/tcp/127.0.0.1/9470 || continue
                printf "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" >&4
                case $(cat <&4) in *" 200 "*) echo answered >>/tmp/attack/flood ;; esac
                exec 4>&-
            done' 2>/dev/null &
        FLOOD="$FLOOD $!"
    done
    healthy=0
    for _ in 1 2 3 4 5; do
        answers_yes healthz && healthy=$((healthy + 1))
        sleep 1
    done
    fact probes-answered "$healthy"
    for one in $FLOOD; do
        wait "$one" || true
    done
    fact flood-answered "$(wc -l <$ATTACK/flood)"
}

end_attacks() {
    touch $ATTACK/over
    wait $USER_JOB || true
    fact marked-process "$(kill -0 $MARKED 2>/dev/null && echo lives || echo ended)"
    kill $MARKED
    wait $MARKED || true
    pkill -u 65534 || true
    section attack.user sort -u $ATTACK/user
    section attack.user-log cat $ATTACK/user.log
    section attack.rounds cat $ATTACK/rounds
    section attack.tried sort -u $ATTACK/tried
    section attack.container pod logs attacker
    pod rm --force --time 0 attacker >/dev/null
    # The attacks' own leftovers, and no file of the agent.
    rm -rf /run/nvidia/longshore $ATTACK
    # A process that was ended here may take a moment to disappear.
    while pgrep -u 65534 >/dev/null; do sleep 0.1; done
}

prepare
core_pattern=$(cat /proc/sys/kernel/core_pattern)
state before
start_attacks
# Locks that are held before the agent starts, too.
sleep 5
start_agent
is_private() { [ "$(stat -c %a /var/lib/longshore)" = 700 ]; }
if await is_private; then
    touch $ATTACK/opened
    opened_in=$(sed -n 's/^ *"phase": *"\([a-z]*\)".*/\1/p' "$STATE" 2>/dev/null | head -n 1)
    fact opened-in "${opened_in:-none}"
fi
if await has_phase ready; then
    phase ready
    report_ready ready
    flood
    phase terminate
    pod kill -s TERM longshore >/dev/null
fi
finish_agent
fact core-pattern-kept "$([ "$(cat /proc/sys/kernel/core_pattern)" = "$core_pattern" ] && echo yes || echo no)"
end_attacks
after

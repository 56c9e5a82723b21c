#!/usr/bin/env bash
# A real Cassandra for tests and benchmarks, from Maven Central.
#
#   cassandra.sh fetch             get the server into build/cassandra/lib, once
#   cassandra.sh run DIR           run a node in the foreground, in DIR
#   cassandra.sh start DIR         run one in the background
#   cassandra.sh wait DIR [SEC]    until it answers (120 s)
#   cassandra.sh stop DIR [SIGNAL] end it and wait for its end
#   cassandra.sh with COMMAND...   run a command with a node that answers at BOWSTRING_CASSANDRA_ADDR
#   cassandra.sh beside COMMAND... run a command while a node starts there, in BOWSTRING_CASSANDRA_DIR. Within the
#                                  command, `with` waits for that node, and starts none
#   cassandra.sh cluster start|stop DIR   three nodes in DIR/1 to 3, on 127.0.0.1 to 3
#
# run and start take from the environment, with these defaults:
#   IP=127.0.0.1 PORT=9042 STORAGE_PORT=7000 SEEDS=$IP:$STORAGE_PORT TOKEN=
#   HEAP=256m MEMTABLE=64MiB JVM="-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
#   AUTH=      1: password authentication; user cassandra, password cassandra
#   TLS=       a folder with keystore.p12, truststore.p12 and the file password:
#              clients must use TLS, and show a certificate that truststore.p12 has
#   RING_DELAY=100  milliseconds that a node waits for the others when it starts
#   LISTEN=$IP      where the node listens; others are given IP, so that a proxy can stand there
#   PATIENCE=10s    timeout of the requests that a node has from clients and makes of others
#   CLOCK=          a file that says by how much the node's clock is wrong, such as +5s or -0.5s,
#                   and may change while it runs; needs libfaketime
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
cache=${BOWSTRING_CASSANDRA:-$root/build/cassandra}
maven_plugin=org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies

die() { echo "cassandra.sh: $*" >&2; exit 1; }

# need COMMAND PACKAGE: install the package if the command is absent and root may.
need() {
  command -v "$1" >/dev/null && return
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "cassandra.sh: installing $2" >&2
    { apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq -y -o DPkg::Lock::Timeout=300 --no-install-recommends install "$2"; } >"$cache/apt.log" 2>&1 ||
      die "'$1' is missing and apt-get could not install $2; see $cache/apt.log"
  fi
  command -v "$1" >/dev/null || die "'$1' is missing: install $2 (Debian, Ubuntu: apt install $2)"
}

need_java() {
  need java openjdk-17-jre-headless
  local version
  version=$(java -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -1)
  case $version in
    11 | 17) ;;
    *) die "Cassandra 5.0 needs Java 11 or 17; $(command -v java) is version ${version:-unknown}. Put the right one first in PATH" ;;
  esac
}

# clock_library: what makes a program read another clock, fetched if root may.
clock_library() {
  local found=
  find_library() { found=$(compgen -G '/usr/lib/*/faketime/libfaketimeMT.so.1' || compgen -G '/usr/lib/faketime/libfaketimeMT.so.1') || :; }
  exec 9>"$cache/lock"
  flock 9 # nodes start at the same time
  find_library
  if [ -z "$found" ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "cassandra.sh: installing libfaketime" >&2
    { apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends install libfaketime; } >"$cache/apt.log" 2>&1 || :
    find_library
  fi
  exec 9>&-
  [ -n "$found" ] || die "libfaketime is missing: install libfaketime (Debian, Ubuntu: apt install libfaketime)"
  head -1 <<<"$found"
}

fetch() {
  mkdir -p "$cache"
  exec 9>"$cache/lock"
  flock 9 # tests of several packages start at once
  need_java
  if ! cmp -s "$here/pom.xml" "$cache/pom.xml"; then
    need mvn maven
    rm -rf "$cache/lib"
    mvn -B -q -f "$here/pom.xml" "$maven_plugin" -DoutputDirectory="$cache/lib" -DincludeScope=runtime >"$cache/maven.log" 2>&1 ||
      die "Maven could not get Cassandra from Maven Central; see $cache/maven.log"
    cp "$here/pom.xml" "$cache/pom.xml"
  fi
  exec 9>&-
}

# node DIR: write the configuration and become the server.
node() {
  local dir ip=${IP:-127.0.0.1} storage=${STORAGE_PORT:-7000} heap=${HEAP:-256m}
  mkdir -p "$1/conf"
  dir=$(cd "$1" && pwd)
  sed -e "s|@DIR@|$dir|g; s|@IP@|$ip|g; s|@PORT@|${PORT:-9042}|g; s|@STORAGE_PORT@|$storage|g" \
      -e "s|@SEEDS@|${SEEDS:-$ip:$storage}|g; s|@MEMTABLE@|${MEMTABLE:-64MiB}|g" \
      -e "s|@LISTEN@|${LISTEN:-$ip}|g; s|@PATIENCE@|${PATIENCE:-10s}|g" \
      "$here/cassandra.yaml.in" >"$dir/conf/cassandra.yaml"
  {
    [ -z "${TOKEN:-}" ] || echo "initial_token: $TOKEN"
    if [ -n "${AUTH:-}" ]; then
      echo "authenticator: PasswordAuthenticator"
      echo "authorizer: CassandraAuthorizer"
    else
      echo "authenticator: AllowAllAuthenticator"
      echo "authorizer: AllowAllAuthorizer"
    fi
    if [ -n "${TLS:-}" ]; then
      echo "client_encryption_options:"
      echo "  enabled: true"
      echo "  optional: false"
      echo "  keystore: $TLS/keystore.p12"
      echo "  keystore_password: $(cat "$TLS/password")"
      echo "  require_client_auth: true"
      echo "  truststore: $TLS/truststore.p12"
      echo "  truststore_password: $(cat "$TLS/password")"
      echo "  store_type: PKCS12"
    fi
  } >>"$dir/conf/cassandra.yaml"
  cp "$here/logback.xml" "$dir/conf/"

  local env=()
  if [ -n "${CLOCK:-}" ]; then
    local library
    library=$(clock_library)
    # Waiting goes by the monotonic clock, which stays right. Without the last setting each timed wait of the JVM ends at once.
    env=(env LD_PRELOAD="$library" FAKETIME_TIMESTAMP_FILE="$CLOCK" FAKETIME_CACHE_DURATION=1 NO_FAKE_STAT=1
         FAKETIME_DONT_FAKE_MONOTONIC=1 FAKETIME_FORCE_MONOTONIC_FIX=0)
  fi

  # Packages that the server reflects into, as its own start script lists them.
  local opens=() p
  for p in jdk.internal.misc java.lang.ref sun.nio.ch; do opens+=(--add-exports "java.base/$p=ALL-UNNAMED"); done
  opens+=(
    --add-exports java.management.rmi/com.sun.jmx.remote.internal.rmi=ALL-UNNAMED
    --add-exports java.rmi/sun.rmi.registry=ALL-UNNAMED
    --add-exports java.rmi/sun.rmi.server=ALL-UNNAMED
    --add-exports java.sql/java.sql=ALL-UNNAMED
    --add-exports jdk.attach/sun.tools.attach=ALL-UNNAMED
    --add-opens jdk.management/com.sun.management.internal=ALL-UNNAMED
  )
  for p in java.io java.lang java.lang.module java.lang.reflect java.util java.nio sun.nio.ch jdk.internal.loader \
           jdk.internal.ref jdk.internal.reflect jdk.internal.math jdk.internal.module jdk.internal.util.jar; do
    opens+=(--add-opens "java.base/$p=ALL-UNNAMED")
  done
  # shellcheck disable=SC2086 # JVM is a list of options
  exec "${env[@]}" java -Xms"$heap" -Xmx"$heap" -Xss256k -XX:MaxDirectMemorySize=512m -XX:-UsePerfData -XX:+ExitOnOutOfMemoryError \
    ${JVM--XX:+UseSerialGC -XX:TieredStopAtLevel=1} \
    -javaagent:"$(echo "$cache"/lib/jamm-*.jar)" -Djdk.attach.allowAttachSelf=true "${opens[@]}" \
    -Dio.netty.tryReflectionSetAccessible=true \
    -Dcassandra.config="file://$dir/conf/cassandra.yaml" -Dcassandra.storagedir="$dir" -Dcassandra.logdir="$dir" \
    -Dlogback.configurationFile="$dir/conf/logback.xml" -Dcassandra-foreground=yes \
    -Dcassandra.superuser_setup_delay_ms=-1 -Dcassandra.skip_wait_for_gossip_to_settle=0 \
    -Dcassandra.ring_delay_ms="${RING_DELAY:-100}" \
    -cp "$dir/conf:$cache/lib/*" org.apache.cassandra.service.CassandraDaemon
}

setting() { sed -n "s/^$2: //p" "$1/conf/cassandra.yaml"; }

# answers IP PORT: an OPTIONS request of protocol 4 gets an answer.
answers() {
  { exec 3<>"/dev/tcp/$1/$2"; } 2>/dev/null || return 1
  printf '\x04\x00\x00\x00\x05\x00\x00\x00\x00' >&3
  local n
  n=$(timeout 2 head -c 5 <&3 | wc -c)
  exec 3<&- 3>&-
  [ "$n" = 5 ]
}

start() {
  mkdir -p "$1"
  rm -f "$1/conf/cassandra.yaml"
  setsid "${BASH_SOURCE[0]}" run "$1" >"$1/out.log" 2>&1 </dev/null &
  echo $! >"$1/pid"
  disown # the shell does not report its end
}

# silent DIR WHAT: stops a node that does not answer.
silent() {
  tail -n 20 "$1/out.log" >&2
  die "the node in $1 $2; above is the end of its out.log"
}

await() {
  local end=$((SECONDS + ${2:-120}))
  until [ -f "$1/conf/cassandra.yaml" ] && answers "$(setting "$1" rpc_address)" "$(setting "$1" native_transport_port)"; do
    kill -0 "$(cat "$1/pid")" 2>/dev/null || silent "$1" "has ended"
    [ $SECONDS -lt $end ] || silent "$1" "does not answer"
    sleep 0.2
  done
}

stop() {
  local pid
  pid=$(cat "$1/pid")
  kill -"${2:-TERM}" "$pid" 2>/dev/null || return 0
  while kill -0 "$pid" 2>/dev/null; do sleep 0.1; done
}

# free_port: one that no process listens on at present.
free_port() {
  local port
  while port=$((20000 + RANDOM % 10000)); (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do :; done
  echo "$port"
}

# beside COMMAND...: a node that starts, after it was fetched, while the command runs, and ends with it.
beside() {
  local status=0
  with_dir=$(mktemp -d -t bowstring-cassandra-XXXXXX)
  trap 'kill -KILL -- "-$(cat "$with_dir/pid")" 2>/dev/null || :; stop "$with_dir" KILL; rm -rf "$with_dir"' EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM
  export PORT STORAGE_PORT BOWSTRING_CASSANDRA_DIR=$with_dir BOWSTRING_CASSANDRA_ADDR
  PORT=$(free_port) STORAGE_PORT=$(free_port)
  BOWSTRING_CASSANDRA_ADDR=127.0.0.1:$PORT
  start "$with_dir"
  unset PORT STORAGE_PORT # nodes that the command starts have their own
  "$@" || status=$?
  exit $status
}

# with COMMAND...: a command that needs a node that answers.
with() {
  if [ -n "${BOWSTRING_CASSANDRA_DIR:-}" ]; then
    await "$BOWSTRING_CASSANDRA_DIR" 900 # it may still be fetched
  elif [ -z "${BOWSTRING_CASSANDRA_ADDR:-}" ]; then
    beside "${BASH_SOURCE[0]}" with "$@"
  fi
  exec "$@"
}

cluster() {
  local tokens=(-9223372036854775808 -3074457345618258603 3074457345618258602) i storage=${STORAGE_PORT:-7000}
  case $1 in
    start)
      for i in 1 2 3; do
        IP=127.0.0.$i TOKEN=${tokens[i - 1]} RING_DELAY=${RING_DELAY:-3000} \
          SEEDS=127.0.0.1:$storage,127.0.0.2:$storage,127.0.0.3:$storage "${BASH_SOURCE[0]}" start "$2/$i"
      done
      for i in 1 2 3; do await "$2/$i" 300; done ;;
    stop) for i in 1 2 3; do stop "$2/$i"; done ;;
    *) die "cluster start DIR or cluster stop DIR" ;;
  esac
}

command=${1:-help}
shift || true
case $command in
  fetch) fetch ;;
  run) fetch; node "$1" ;;
  start) fetch; start "$1" ;;
  wait) await "$@" ;;
  stop) stop "$@" ;;
  beside) beside "$@" ;;
  with) with "$@" ;;
  cluster) fetch; cluster "$@" ;;
  *) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; [ "$command" = help ] ;;
esac

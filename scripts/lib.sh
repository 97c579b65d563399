# Shared by the scripts: where things are, saying what happens, Debian packages, the Go toolchain, the programs.
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
CACHE=${FLOWKEEP_CACHE:-/var/cache/flowkeep}
TOOLS=$CACHE/tools
PROGRAMS=$CACHE/programs/$(printf %s "$ROOT" | cksum | cut -d' ' -f1)   # each checkout's own
PARTS=$TOOLS/parts-${PROGRAMS##*/}
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin:/usr/local/go/bin
export PATH
# Without the folder of the checkout in the names of files, all checkouts on a machine share what one has compiled.
[[ " ${GOFLAGS-} " == *" -trimpath "* ]] || export GOFLAGS="${GOFLAGS:+$GOFLAGS }-trimpath"

began=${FLOWKEEP_BEGAN:-$(date +%s)}
export FLOWKEEP_BEGAN=$began

# step TEXT: a progress line with the seconds since the verb began
step() { printf '[%4d s] %s\n' "$(($(date +%s) - began))" "$*" >&2; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

# three_times COMMAND…: runs a command until it succeeds, up to three times, with a pause: downloads fail now and then
three_times() {
  local n
  for n in 1 2 3; do
    "$@" && return
    [ "$n" = 3 ] || { step "failed, try $((n + 1)) of 3 follows: $*"; sleep $((n * 5)); }
  done
  return 1
}

HEAVY_LOCK=$CACHE/heavy.lock # with "VERB PID DATE TIME" of the newest holder
# heavy VERB: takes the lock of heavy runs on this machine, and waits 5 minutes for it. It takes nothing where a verb that holds the lock has
# started this one: FLOWKEEP_HEAVY is the holder's pid. Returns 1 if the lock stays taken. A script that has called it names the processes
# that it waits for: "wait" alone waits for the one that holds the lock.
heavy() {
  local limit=${FLOWKEEP_HEAVY_LIMIT:-300} pid= # the variable is for tests
  { mkdir -p "$CACHE" && { [ -e "$HEAVY_LOCK" ] || (umask 0; : >>"$HEAVY_LOCK"); } && [ -w "$HEAVY_LOCK" ]; } || {
    step "error: $HEAVY_LOCK cannot be written: set FLOWKEEP_CACHE to a folder that can"
    return 1
  }
  ! heavy_is_inherited || return 0
  unset FLOWKEEP_HEAVY
  take_heavy "$1" 0.5 || {
    [ -z "$heavy_problem" ] || { step "error: $HEAVY_LOCK cannot be taken: $heavy_problem"; return 1; }
    step "waiting up to $limit s for $(heavy_holder)"
    take_heavy "$1" "$limit" || {
      read -r _ pid _ <"$HEAVY_LOCK"
      step "error: $(heavy_holder) still runs, and a machine has one heavy run at a time: wait until it ends, or end it with \"kill $pid\"; then repeat"
      return 1
    }
    began=$(date +%s)
    export FLOWKEEP_BEGAN=$began
  }
  export FLOWKEEP_HEAVY=$$
}
# heavy_is_inherited: reports whether the process that FLOWKEEP_HEAVY names holds the lock now
heavy_is_inherited() {
  local pid=
  read -r _ pid _ <"$HEAVY_LOCK"
  [ -n "$pid" ] && [ "${FLOWKEEP_HEAVY:-}" = "$pid" ] && [ -e "/proc/$pid" ] && ! flock -n "$HEAVY_LOCK" true
}
# take_heavy VERB SECONDS: starts a process that holds the lock and dies with this one, however that ends. No other program has its
# descriptor. It has a session of its own, so that no signal of a terminal ends it before this process has cleaned up. heavy_problem is why
# the lock cannot be taken, empty if another holds it.
take_heavy() {
  local taken=
  read -r taken < <(exec setsid setpriv --pdeathsig KILL flock --no-fork -w "$2" "$HEAVY_LOCK" sh -c '
    [ "$PPID" = "$1" ] && echo "$2 $1 $(date "+%F %T")" >"$0" && echo taken && exec sleep infinity >/dev/null' \
    "$HEAVY_LOCK" $$ "$1" </dev/null 2>&1)
  heavy_problem=${taken#taken}
  [ "$taken" = taken ]
}
heavy_holder() {
  local verb= pid= since=
  read -r verb pid since <"$HEAVY_LOCK"
  echo "$verb (pid $pid, since $since)"
}

need_root() { [ "$(id -u)" = 0 ] || die "$1 needs root: it makes network namespaces and runs containers; try sudo -E make $1"; }

# apt_need COMMAND:PACKAGE…: installs the packages whose command (or, with a leading /, file) is missing. The packages'
# own services are kept from starting, and are neither stopped nor changed where they run already.
apt_need() {
  local pair missing=() made=
  for pair; do
    case $pair in
      /*) [ -e "${pair%%:*}" ] || missing+=("${pair##*:}") ;;
      *) command -v "${pair%%:*}" >/dev/null || missing+=("${pair##*:}") ;;
    esac
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  command -v apt-get >/dev/null || die "this machine lacks ${missing[*]} and has no apt-get: install them and repeat"
  [ "$(id -u)" = 0 ] || die "this machine lacks ${missing[*]}: run as root, or apt-get install ${missing[*]}"
  step "apt-get install ${missing[*]}"
  if [ ! -e /usr/sbin/policy-rc.d ]; then
    printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
    chmod +x /usr/sbin/policy-rc.d
    made=1
  fi
  local code=0
  three_times apt_install "${missing[@]}" || code=$?
  [ -z "$made" ] || rm -f /usr/sbin/policy-rc.d
  [ $code = 0 ] || { tail -5 "${TMPDIR:-/tmp}/flowkeep-apt.log" >&2; die "apt-get could not install ${missing[*]}: see above, mend the package sources, repeat"; }
}
apt_install() {
  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@"; } \
    >"${TMPDIR:-/tmp}/flowkeep-apt.log" 2>&1
}

# What a node and the control plane run; also what the sandbox itself needs.
apt_sandbox() {
  apt_need etcd:etcd-server containerd:containerd runc:runc nft:nftables conntrack:conntrack ethtool:ethtool tcpdump:tcpdump ip:iproute2 \
    openssl:openssl iptables:iptables /usr/lib/cni/portmap:containernetworking-plugins ovs-vswitchd:openvswitch-switch \
    memcached:memcached iperf3:iperf3 nsenter:util-linux sysctl:procps /etc/ssl/certs/ca-certificates.crt:ca-certificates
}

# What the race detector is linked by.
apt_gcc() { apt_need gcc:gcc /usr/include/stdio.h:libc6-dev; }

# apt_browser: installs Chromium (100 MB) for tests of the web UI. Those are skipped with a reason where that fails.
apt_browser() { (apt_need chromium:chromium) || step "tests of the web UI are skipped: no Chromium"; }

# need_go: a toolchain that can build this module: that of PATH, or else the version that go.mod names, fetched once as a
# module by Debian's older Go (which checks it against the checksum database) into the cache.
need_go() {
  local own=$CACHE/go/$(go_wanted)
  go_is_new_enough && return
  if [ ! -x "$own/bin/go" ]; then
    apt_need /usr/lib/go-1.19/bin/go:golang-1.19-go /etc/ssl/certs/ca-certificates.crt:ca-certificates
    step "fetching Go $(go_wanted)"
    three_times fetch_go "$own" || die "could not fetch Go $(go_wanted) through the module proxy: install it in /usr/local/go (https://go.dev/dl/) and repeat"
  fi
  export PATH=$own/bin:$PATH GOTOOLCHAIN=local
  go_is_new_enough || die "Go in $own does not run: remove that directory and repeat, or install Go $(go_wanted) in /usr/local/go"
}
go_is_new_enough() {
  local have
  have=$(go env GOVERSION 2>/dev/null) || return 1
  have=${have#go}
  [ "$(printf '%s\n%s\n' "$(go_wanted)" "${have%% *}" | sort -V | head -1)" = "$(go_wanted)" ]
}
fetch_go() {
  local old=/usr/lib/go-1.19/bin/go mod=$CACHE/go/fetch tool
  tool=golang.org/toolchain@v0.0.1-go$(go_wanted).linux-$($old env GOARCH)
  mkdir -p "$mod"
  (cd "$mod" && env -u GOTOOLCHAIN -u GOROOT GOFLAGS=-modcacherw GOMODCACHE="$mod" "$old" mod download "$tool") || return 1
  chmod +x "$mod/$tool"/bin/* "$mod/$tool"/pkg/tool/*/* && mv "$mod/$tool" "$1" && rm -rf "$mod"
}
go_wanted() { sed -n 's/^go //p' "$ROOT/go.mod"; }

# need_helm: helm, of tools/helm/go.mod, into the cache
need_helm() {
  tool_is_built helm "$ROOT/tools/helm/go.mod" || { step "building helm, once (3 to 8 minutes)"; build_tool helm "$ROOT/tools/helm" helm.sh/helm/v4/cmd/helm; }
}
# need_golangci_lint: golangci-lint, of tools/go.mod, into the cache
need_golangci_lint() {
  tool_is_built golangci-lint "$ROOT/tools/go.mod" || {
    step "building golangci-lint, once (1 to 4 minutes)"
    build_tool golangci-lint "$ROOT/tools" github.com/golangci/golangci-lint/v2/cmd/golangci-lint
  }
}
# need_controller_gen: controller-gen, of tools/controller-gen/go.mod, into the cache
need_controller_gen() {
  tool_is_built controller-gen "$ROOT/tools/controller-gen/go.mod" || {
    step "building controller-gen, once"
    build_tool controller-gen "$ROOT/tools/controller-gen" sigs.k8s.io/controller-tools/cmd/controller-gen
  }
}
# need_krew: krew and its check of manifests, of tools/krew/go.mod, into the cache
need_krew() {
  local name
  for name in krew validate-krew-manifest; do
    tool_is_built "$name" "$ROOT/tools/krew/go.mod" || {
      step "building $name, once"
      build_tool "$name" "$ROOT/tools/krew" "sigs.k8s.io/krew/cmd/$name"
    }
  done
}
# need_crane: crane, of tools/crane/go.mod, into the cache
need_crane() {
  tool_is_built crane "$ROOT/tools/crane/go.mod" || {
    step "building crane, once"
    build_tool crane "$ROOT/tools/crane" github.com/google/go-containerregistry/cmd/crane
  }
}
# chart ARGS…: the chart's objects, as helm renders them with these arguments
chart() { "$TOOLS/helm" template flowkeep "$ROOT/deploy/chart" --namespace flowkeep-system "$@"; }

# deploy_args: what sandbox/up takes more where DEPLOY=manifests: Flowkeep is installed by deploy/flowkeep.yaml instead of by scripts/node-up
deploy_args() {
  case ${DEPLOY:-} in
    manifests) echo --own-mounts --cni-hook "$ROOT/scripts/manifests-up" ;;
    '') ;;
    *) die "DEPLOY=$DEPLOY: there is manifests only" ;;
  esac
}

# version: what the programs say of themselves, and their images' tag; FLOWKEEP_VERSION is another one
version() { [ -z "${FLOWKEEP_VERSION:-}" ] || { echo "$FLOWKEEP_VERSION"; return; }; git -C "$ROOT" describe --tags --always --dirty --abbrev=12 2>/dev/null || echo unknown; }

# compile NAME ARGS…: compile_once, and again after a download that failed
compile() {
  local n out
  out=$(mktemp)
  for n in 1 2 3; do
    compile_once "$@" && break
    [ "$n" != 3 ] && grep -Eq "$DOWNLOAD_FAILED" "$out" || { rm -f "$out"; return 1; }
    step "a download failed: try $((n + 1)) of 3"
    sleep $((n * 5))
  done
  rm -f "$out"
}
DOWNLOAD_FAILED='dial tcp|i/o timeout|connection (reset|refused)|unexpected EOF|TLS handshake|stream error|50[0-9] |: reading http'
# compile_once NAME ARGS…: go build; instead of the toolchain's own lines it prints every 20 s how many packages were compiled so far.
# -trimpath and no DWARF for all programs: the toolchain compiles a package once for all that are built alike.
compile_once() {
  local name=$1 packages=0 last=$SECONDS line; shift
  { go build -v -buildvcs=false -trimpath -gcflags=all=-dwarf=false "$@" 2>&1 && echo "built: yes"; } | {
    while IFS= read -r line; do
      case $line in
        "go: downloading "*) continue ;;
        "built: yes") packages="$packages done"; break ;;
        *[\ :]*) printf '%s\n' "$line" | tee -a "$out" >&2 ;; # the compiler's messages
        *) packages=$((packages + 1)) ;;
      esac
      [ $((SECONDS - last)) -lt 20 ] || { step "$name: $packages packages compiled"; last=$SECONDS; }
    done
    [[ $packages == *" done" ]]
  }
}
PROGRAM_PACKAGES=(./netmaster ./netplugin ./netctl ./netplugin/cni/flowkeep-cni ./macvtap/cni/macvtap
  github.com/containernetworking/plugins/plugins/meta/portmap)
# use_locked_go: has programs built as everybody builds them from this commit, whatever the environment says (deploy/images/lock)
use_locked_go() {
  local locked
  locked=$(sed -n 's/^go //p' "$ROOT/deploy/images/lock")
  export GOTOOLCHAIN=go$locked GOFLAGS=-buildvcs=false GOAMD64=v1 GOARM64=v8.0 GOEXPERIMENT= CGO_ENABLED=0 GOWORK=off
}
# licenses PACKAGE…: prints the licenses and notices of all modules that programs are built of, the standard library included
licenses() {
  local module dir files
  {
    go list -deps -f '{{with .Module}}{{if not .Main}}{{with or .Replace .}}{{.Path}}@{{.Version}} {{.Dir}}{{end}}{{end}}{{end}}' "$@"
    go env GOVERSION GOROOT | paste -sd ' '
  } | LC_ALL=C sort -u | while read -r module dir; do
    files=$(find "$dir" -maxdepth 1 -type f -iregex '.*/\(licen[cs]e\|copying\|notice\|patents\)\([._-].*\)?' ! -name '*.go' | LC_ALL=C sort)
    [ -n "$files" ] || die "$module has no file with a license in $dir"
    printf '%s\n' ================ "$module" ================
    xargs cat <<<"$files"
  done
}
# build_programs: netmaster, netplugin, netctl and the CNI plugins flowkeep-cni, flowkeep-portmap and macvtap into $PROGRAMS; quick when
# nothing changed
build_programs() {
  mkdir -p "$PROGRAMS"
  (cd "$ROOT" && CGO_ENABLED=0 compile "Flowkeep's programs" -o "$PROGRAMS/" \
    -ldflags "-s -w -X github.com/flowkeep/flowkeep/internal/process.Version=$(version)" \
    "${PROGRAM_PACKAGES[@]}") && cp "$PROGRAMS/portmap" "$PROGRAMS/flowkeep-portmap" ||
    die "the programs do not build: see the compiler's messages above"
}

# build_earlier: the programs of the earlier commit that TestUpgrade begins with; quick when they were built before. A clone without that
# commit has none, and the test is skipped. No test may run meanwhile: a compiler takes the processors from those that measure.
build_earlier() {
  local commit
  commit=$(sed -n 's/^const earlierCommit = "\(.*\)"$/\1/p' "$ROOT/systemtests/versions_test.go")
  "$ROOT/systemtests/sandbox/earlier" "$commit" >/dev/null || [ $? = 3 ]
}

SYSTEM_TESTS=$PROGRAMS/systemtests.test
# build_system_tests: the test program of systemtests/ into $PROGRAMS; quick when nothing changed
build_system_tests() {
  mkdir -p "$PROGRAMS"
  (flock 9 && cd "$ROOT/systemtests" && three_times go list -deps -test . >/dev/null && CGO_ENABLED=0 go test -c -vet=off -o "$SYSTEM_TESTS" .) 9>"$PROGRAMS/.systemtests.lock"
}

# need_parts: tools/parts, the program of make test-full, into $PARTS
need_parts() { mkdir -p "$TOOLS"; (cd "$ROOT/tools" && three_times env CGO_ENABLED=0 go build -o "$PARTS" ./parts); }
# gate_shape: prints the part of the shape that the gate tests at this commit, and its flags
gate_shape() { need_parts && (cd "$ROOT" && "$PARTS" shape); }
# shape_needs FLAG…: prints the option of systemtests/sandbox/build for what the shape in flags of a test needs
shape_needs() { [[ " $* " != *" -shape containerd-2 "* ]] || echo --containerd; }

# tally PASSED FAILED SKIPPED: appends counts to $FLOWKEEP_TALLY, where it is set
tally() { [ -z "${FLOWKEEP_TALLY:-}" ] || echo "$*" >>"$FLOWKEEP_TALLY"; }

# go_tests MODULE_DIR ARGS…: runs go test in a module and prints a line a package; see summarise
go_tests() {
  local dir=$1 format=${FLOWKEEP_FORMAT:-pkgname}; shift
  case " $* " in *" -table "*) format=standard-verbose ;; esac
  (cd "$ROOT/$dir" && summarise "$format" go test -json "$@")
}
# summarise FORMAT COMMAND…: runs a command that prints test2json events and prints them in a format of gotestsum's, with the output of
# tests that failed. Appends the counts to $FLOWKEEP_TALLY and keeps the events in the directory $FLOWKEEP_EVENTS, where they are set.
summarise() {
  local format=$1 out code=0 counts keep=(); shift
  out=$(mktemp)
  [ -z "${FLOWKEEP_EVENTS:-}" ] || keep=(--jsonfile "$(mktemp "$FLOWKEEP_EVENTS/XXXXXX.json")")
  # gotestsum counts each line of the standard error of a command that it starts as an error: it gets the events alone
  "$@" | "$TOOLS/gotestsum" --format "$format" --format-hide-empty-pkg --hide-summary skipped "${keep[@]}" --raw-command -- cat 2>&1 | tee "$out"
  code=${PIPESTATUS[0]}
  counts=$(counts_of "$out")
  rm -f "$out"
  case $code,$counts in
    0,*" 0 "*) ;;
    0,*) code=1 ;;
    *,*" 0 "*) # the command failed, not a test
      counts="${counts%% *} 1 ${counts##* }"
      [ -z "${FLOWKEEP_EVENTS:-}" ] || echo "ended with $code and without a failed test: $*" >>"$FLOWKEEP_EVENTS/errors"
      ;;
  esac
  tally $counts
  return "$code"
}
# counts_of FILE: "PASSED FAILED SKIPPED" of the last summary that gotestsum wrote into a file
counts_of() {
  awk '/^DONE .*tests?.* in / {
      all = skipped = failed = 0
      for (i = 2; i < NF; i++) {
        if ($(i + 1) ~ /^tests?,?$/) all = $i
        if ($(i + 1) ~ /^skipped,?$/) skipped = $i
        if ($(i + 1) ~ /^(failures?|errors?),?$/) failed += $i
      }
    }
    END {passed = all - skipped - failed; printf "%d %d %d\n", passed < 0 ? 0 : passed, failed, skipped}' "$1"
}
# record SUITE NAME pass|fail|skip SECONDS [FILE]: counts a check that is no Go test as one, with the text of FILE as its output
record() {
  local words result
  case $3 in pass) words=PASS; tally 1 0 0 ;; fail) words=FAIL; tally 0 1 0 ;; skip) words=SKIP; tally 0 0 1 ;; esac
  result=$words
  [ "$words" != SKIP ] || result=PASS
  [ -n "${FLOWKEEP_EVENTS:-}" ] || return 0
  { printf '=== RUN   %s\n' "$2"; cat "${5:-/dev/null}"; printf -- '--- %s: %s (%d.00s)\n%s\n' "$words" "$2" "$4" "$result"; } |
    go tool test2json -t -p "$1" >>"$FLOWKEEP_EVENTS/checks.json"
}
# need_gotestsum: gotestsum, of tools/go.mod, into the cache
need_gotestsum() {
  tool_is_built gotestsum "$ROOT/tools/go.mod" || { step "building gotestsum, once"; build_tool gotestsum "$ROOT/tools" gotest.tools/gotestsum; }
}
# tool_is_built NAME FILE…: reports whether a program in $TOOLS was built from just these files by this toolchain
tool_is_built() { [ -x "$TOOLS/$1" ] && [ "$(cat "$TOOLS/$1.stamp" 2>/dev/null)" = "$(tool_inputs "${@:2}")" ]; }
tool_inputs() { { go env GOVERSION; cat "$@"; } | sha256sum | cut -d' ' -f1; }
# build_tool NAME MODULE_DIR PACKAGE: builds a program of a module of tools into $TOOLS
build_tool() {
  mkdir -p "$TOOLS"
  (cd "$2" && CGO_ENABLED=0 compile "$1" -ldflags "-s -w" -o "$TOOLS/$1" "$3") || die "$1 does not build: see above"
  tool_inputs "$2/go.mod" >"$TOOLS/$1.stamp"
}

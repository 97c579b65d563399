# Shared by the scripts: where things are, saying what happens, Debian packages, the Go toolchain, the programs.
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
CACHE=${FLOWKEEP_CACHE:-/var/cache/flowkeep}
TOOLS=$CACHE/tools
PROGRAMS=$CACHE/programs/$(printf %s "$ROOT" | cksum | cut -d' ' -f1)   # each checkout's own
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin:/usr/local/go/bin
export PATH

began=${FLOWKEEP_BEGAN:-$(date +%s)}
export FLOWKEEP_BEGAN=$began

# step TEXT: a progress line with the seconds since the verb began
step() { printf '[%4d s] %s\n' "$(($(date +%s) - began))" "$*" >&2; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

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
  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"; } \
    >"${TMPDIR:-/tmp}/flowkeep-apt.log" 2>&1 || code=$?
  [ -z "$made" ] || rm -f /usr/sbin/policy-rc.d
  [ $code = 0 ] || { tail -5 "${TMPDIR:-/tmp}/flowkeep-apt.log" >&2; die "apt-get could not install ${missing[*]}: see above, mend the package sources, repeat"; }
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
    fetch_go "$own" || die "could not fetch Go $(go_wanted) through the module proxy: install it in /usr/local/go (https://go.dev/dl/) and repeat"
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

# need_helm: helm, of tools/helm's go.mod, into the cache
need_helm() {
  local want
  want=$(sha256sum "$ROOT/tools/helm/go.mod" | cut -d' ' -f1)-$(go env GOVERSION)
  [ ! -x "$TOOLS/helm" ] || [ "$(cat "$TOOLS/helm.stamp" 2>/dev/null)" != "$want" ] || return 0
  step "building helm, once (3 to 8 minutes)"
  mkdir -p "$TOOLS"
  (cd "$ROOT/tools/helm" && CGO_ENABLED=0 go build -ldflags "-s -w" -o "$TOOLS/helm" helm.sh/helm/v4/cmd/helm) || die "helm does not build: see above"
  echo "$want" >"$TOOLS/helm.stamp"
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

# build_programs: netmaster, netplugin, netctl and the CNI plugins flowkeep-cni, flowkeep-portmap and macvtap into $PROGRAMS; quick when nothing changed
build_programs() {
  mkdir -p "$PROGRAMS"
  (cd "$ROOT" && CGO_ENABLED=0 go build -buildvcs=false -trimpath -o "$PROGRAMS/" \
    -ldflags "-s -w -X github.com/flowkeep/flowkeep/internal/process.Version=$(version)" \
    ./netmaster ./netplugin ./netctl ./netplugin/cni/flowkeep-cni ./netplugin/macvtap/cni/macvtap &&
    CGO_ENABLED=0 go build -buildvcs=false -trimpath -o "$PROGRAMS/flowkeep-portmap" -ldflags "-s -w" github.com/containernetworking/plugins/plugins/meta/portmap) ||
    die "the programs do not build: see the compiler's messages above"
}

# tally PASSED FAILED SKIPPED: counts for `make test`; nothing outside of it
tally() { [ -z "${FLOWKEEP_TALLY:-}" ] || echo "$*" >>"$FLOWKEEP_TALLY"; }

# go_tests MODULE_DIR ARGS…: go test with a line a package, the output of what failed, and tables if they are asked for (-table); counted
go_tests() {
  local dir=$1 said=; shift
  case " $* " in *" -table "*) said=-said ;; esac
  (cd "$ROOT/$dir" && go test -json "$@") | "$TOOLS/testsum" $said ${FLOWKEEP_TALLY:+-tally "$FLOWKEEP_TALLY" -digest "$FLOWKEEP_TALLY.failures"}
}
need_testsum() { mkdir -p "$TOOLS"; (cd "$ROOT/tools" && CGO_ENABLED=0 go build -o "$TOOLS/testsum" ./testsum); }

# Shared by what boots a cluster in the virtual machine of `run`; sourced after scripts/lib.sh.

# prepare: the modules that this kernel is asked for, an environment in which nothing is built, and a kernel that is not too young: in its
# first ten seconds ovs-vswitchd (3.1) counts no processors, starts no handlers, and every packet without a flow is lost until it
# is started again
prepare() {
  local m age
  until read -r age _ </proc/uptime && [ "${age%.*}" -gt 10 ]; do sleep 0.2; done
  for m in openvswitch sctp $([ "${FLOWKEEP_PROXY_MODE:-}" != ipvs ] || echo ip_vs ip_vs_rr ip_set dummy); do modprobe "$m" || die "the kernel has no module $m"; done
  export GOGC=400   # memory is had, time is not
  export FLOWKEEP_PROGRAMS=$PROGRAMS FLOWKEEP_BEGAN=$(date +%s)
}

# own_directories: containers' layers cannot lie upon a layer; and what kubelets and CNI plugins keep outside of the sandbox's directory
# is the machine around's here: its kubelets may run pods
own_directories() {
  local d
  for d in /var/lib/flowkeep-sandbox /var/log/containers /var/log/pods /var/lib/kubelet /var/lib/cni; do
    mkdir -p $d && mount -t tmpfs tmpfs $d || die "$d cannot be mounted"
  done
}

# slower: how many times slower than this machine an emulated one is: five, and more where others keep its processors busy
slower() {
  local load slow _
  read -r load _ </proc/loadavg
  slow=$((5 + ${load%.*} / $(nproc)))
  echo $((slow < 12 ? slow : 12))
}

package wellknown

// Port is where a program listens.
type Port struct {
	// Program is the command, Flag its flag (without dashes) and Default what that is without being given; Manifests is the port that the manifests
	// of deploy/ give it, 0: that of the default.
	Program, Flag, Default string
	Manifests              int
	// Carries, Clients and Guard say what goes over it, who may connect, and how that is made sure.
	Carries, Clients, Guard string
}

const onLoopback = "loopback only; without a password where it is opened (`monitoring.listen`)"

// Ports are all TCP ports.
var Ports = []Port{
	{"netmaster", "listen", ":7443", 0, "the feed to nodes, and netctl --server", "nodes, administrators", "mutual TLS 1.3: a certificate of the authority; a node is who its certificate says, netctl needs an administrator's"},
	{"netmaster", "access-listen", ":7444", 0, "netctl through the API server", "the API server", "TLS; the front proxy's client certificate, then a SubjectAccessReview for each question"},
	{"netmaster", "sign-listen", ":7445", 0, "nodes' requests for certificates", "nodes", "TLS; the token of netplugin's pod, by TokenReview"},
	{"netmaster", "page-address", "127.0.0.1:9442", 0, "the page for browsers", "who is on netmaster's machine, or may forward a port to its pod", "loopback only; another address wants a token, over TLS"},
	{"netmaster", "http-listen", "127.0.0.1:9440", 0, "/metrics, /healthz, /readyz", "kubelet, Prometheus", onLoopback},
	{"netmaster node-config", "http-listen", "127.0.0.1:9446", 0, "/metrics, /healthz, /readyz", "kubelet, Prometheus", onLoopback},
	{"netmaster policy-sync", "http-listen", "127.0.0.1:9447", 0, "/metrics, /healthz, /readyz", "kubelet, Prometheus", "loopback only; in the manifests the pod's address, which a NetworkPolicy guards"},
	{"netplugin", "http-listen", "127.0.0.1:9441", 0, "/metrics, /healthz, /readyz", "kubelet, Prometheus", onLoopback},
	{"netplugin node-state", "http-listen", "127.0.0.1:9442", 9448, "/metrics, /healthz, /readyz", "kubelet, Prometheus", onLoopback},
	{"netplugin macvtap", "http-listen", "127.0.0.1:9443", 0, "/metrics, /healthz, /readyz", "kubelet, Prometheus", onLoopback},
	{"netplugin switch", "http-listen", "127.0.0.1:9445", 0, "/metrics, /healthz, /readyz", "kubelet, Prometheus", onLoopback},
}

// Others is what else listens.
var Others = []Port{
	{Program: "memcached", Manifests: 11211, Carries: "look-ups by label (`--memcached`)", Clients: "netmaster", Guard: "none of its own; a NetworkPolicy lets the nodes' addresses in"},
	{
		Program:   "the kernel or Open vSwitch",
		Manifests: 6081,
		Carries:   "pods' packets between nodes, UDP (`--traffic-mode geneve` and `auto`)",
		Clients:   "nodes",
		Guard:     "none: keep it to the nodes' network",
	},
}

// Socket is a unix socket.
type Socket struct {
	Path, Made, Carries, Clients, Guard string
}

// Sockets are those that Flowkeep makes or uses.
var Sockets = []Socket{
	{
		Path:    "/run/flowkeep/cni.sock",
		Made:    "netplugin (`--cni-socket`)",
		Carries: "ADD, DEL, CHECK, STATUS and GC of pods; contested objects",
		Clients: "flowkeep-cni, which the container runtime starts; netctl doctor node",
		Guard:   "root of the node",
	},
	{"/run/openvswitch/db.sock, fk0.mgmt, ovs-vswitchd.PID.ctl", "Open vSwitch", "its database, flows of bridge fk0, its control", "netplugin, node-state", "root of the node"},
	{"/var/lib/kubelet/device-plugins/kubelet.sock, macvtap-NAME.sock", "the kubelet; netplugin macvtap", "macvtap devices", "each other", "root of the node"},
	{"/var/lib/kubelet/pod-resources/kubelet.sock", "the kubelet", "which pod holds which device", "netplugin macvtap", "root of the node"},
}

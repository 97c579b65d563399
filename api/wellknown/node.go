package wellknown

// Names of what Flowkeep owns on a node. Node state and netctl doctor recognise it by these.
const (
	Bridge        = "fk0"     // the default of netplugin --bridge
	GatewayDevice = "fk-gw"   // from the node to the bridge
	WireDevice    = "fk-wire" // from the bridge to the node's network stack
	PodLinkPrefix = "fkp"     // begins the node's end of a pod's link
)

// ServiceTable is the default routing table of the second pass of packets to Services (decision 002). cloud-init and
// other programs number tables from 100.
const ServiceTable = 26214

// ArrivalTable is the table behind it, for reverse path filters of firewalls.
const ArrivalTable = ServiceTable + 1

// RulePriority is the default priority of the first of Flowkeep's policy rules.
const RulePriority = 50

// RouteProtocol marks Flowkeep's routes (rtnetlink(7), rtm_protocol).
const RouteProtocol = 0x66

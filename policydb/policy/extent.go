package policy

// Extent lists what nodes store for a policy: the keys of its rules and of the groups in them, and the nodes that need
// them. Values are immutable once passed on.
type Extent struct {
	Rules   []Key
	Peers   []Key // peer groups
	Applied []Key // appliedTo groups
	Nodes   []string
}

package policy

// Extent is what of a policy nodes hold: the keys of its rules and of the groups that these refer to, and the nodes that need
// them. Values are immutable once handed on.
type Extent struct {
	Rules   []Key
	Peers   []Key // peer groups
	Applied []Key // appliedTo groups
	Nodes   []string
}

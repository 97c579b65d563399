package nodestate

import (
	"fmt"
	"time"
)

// Node is the Node object of an agent's node.
type Node struct {
	Name, UID string
	Created   time.Time // as the API server has it, in whole seconds
	Deleted   bool      // it is being deleted; objects may be released from it (kubectl delete --cascade=orphan)
}

// foreign returns why the desired state may be another machine's, and must not be applied here; "" if it is this
// node's. An object goes with its Node (metadata.ownerReferences). One without an owner, as people and earlier versions
// make it, is this node's, unless it was reported before the Node was made, and this agent has not had it before.
func (m Memory) foreign(o Observation) string {
	object, node := o.Object, o.Node
	known := m.Own == object.UID || object.isEmpty() || object.Status.CurrentState == nil
	switch {
	case object.Owner != "" && node == nil:
		return "the Node was deleted: the desired state is not applied, and the interfaces stay as they are"
	case node == nil || object.Owner == node.UID:
		return ""
	case object.Owner == "" && (known || !object.Created.Before(node.Created)):
		return ""
	}
	return fmt.Sprintf(`the desired state is of an earlier Node %s, perhaps another machine. `+
		`To drop it: kubectl delete nns %[1]s. To apply it: kubectl patch nns %[1]s --type=merge -p '{"metadata":`+
		`{"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":%[1]q,"uid":%q}]}}'`, node.Name, node.UID)
}

// isEmpty reports whether nothing is desired.
func (o *Object) isEmpty() bool { return o.Desired == nil && o.DesiredErr == nil }

// lacksOwner reports whether the object is this node's, and does not go with the Node yet.
func (m Memory) lacksOwner(o Observation) bool {
	if o.Object == nil || o.Node == nil || o.Node.Deleted {
		return false
	}
	return o.Object.Managed && o.Object.Owner == "" && m.foreign(o) == ""
}

// isLost reports whether the Node was deleted, and its object with it.
func (m Memory) isLost(o Observation) bool { return o.Object == nil && o.Node == nil && m.HadNode }

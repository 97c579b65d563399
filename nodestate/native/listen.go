package native

import (
	"fmt"

	"github.com/flowkeep/flowkeep/nodestate/native/lldp"
)

// canListen: neighbours send to cards, and in tests and machines that are containers to veths.
func (l *link) canListen() bool { return l.Type == typeEthernet || l.Type == typeVeth }

// listen follows the ports of the network. By default cards are listened to, and veths that stand for cards if the
// machine is a container. A document may choose otherwise, also for other veths.
func (k *kernel) listen(n *network, byIndex map[int]*seen) {
	var ports []lldp.Port
	for _, s := range byIndex {
		if l := s.link; l.canListen() && l.Protected == "" {
			ports = append(ports, lldp.Port{Index: l.Index, Name: l.Name, Default: l.Type == typeEthernet || s.elsewhere})
		}
	}
	n.Deaf = k.ears.Deaf()
	for index, ear := range k.ears.Follow(ports) {
		l := byIndex[index].link
		l.Listens, l.Neighbours = ear.Listens, ear.Neighbours
	}
}

// setLLDP sets whether the link listens. Neighbours are only in reports: nmstate.RefusedReported refuses others.
func (w *wanter) setLLDP(l *link, d *interfaceDoc) error {
	if d.LLDP == nil || d.LLDP.Enabled == nil {
		return nil
	}
	switch on := *d.LLDP.Enabled; {
	case on && !l.canListen():
		return fmt.Errorf("lldp: only interfaces of type ethernet and veth have LLDP, not %s; name the card below it", l.Type)
	case on && w.now.Deaf != nil:
		return fmt.Errorf("lldp: LLDP does not work on this node: %w", w.now.Deaf)
	}
	l.Listens = *d.LLDP.Enabled
	return nil
}

package doctor

// Contested has what netplugin reports of objects that another program changes again after each repair.
type Contested struct {
	Absent   bool // netplugin does not listen
	Socket   string
	Problems Fact[[]string]
}

func (b *book) contested(c *Contested) {
	const check = "host-network"
	switch {
	case c.Absent:
		b.add(check, Note, "netplugin does not listen on "+c.Socket+": it reports no repairs", "")
	case !c.Problems.known():
		b.unknown(check, "what netplugin repairs", c.Problems.Error, "netctl status; run netctl doctor node as root")
	case len(c.Problems.Value) == 0:
		b.ok(check, "no other program changes what netplugin repairs again and again")
	}
	for _, text := range c.Problems.Value {
		b.add(check, Warning, text,
			"have the program leave the object alone; where no program is named: ip monitor all, nft monitor")
	}
}

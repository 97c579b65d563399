package explain

// ids of the two sets that most cells have.
const (
	noneID int32 = 0
	allID  int32 = 1
)

// interner gives equal Connections one number, so that a cell costs four bytes and two cells are combined by a look-up. Not
// for concurrent use.
type interner struct {
	values []Connections
	ids    map[string]int32
	unions map[[2]int32]int32
	meets  map[[2]int32]int32
	rests  map[[2]int32]int32 // of minus
}

func newInterner() *interner {
	in := &interner{ids: map[string]int32{}, unions: map[[2]int32]int32{}, meets: map[[2]int32]int32{}, rests: map[[2]int32]int32{}}
	in.id(Connections{})
	in.id(All())
	return in
}

func (in *interner) id(c Connections) int32 {
	text := c.String()
	id, known := in.ids[text]
	if !known {
		id = int32(len(in.values))
		in.values = append(in.values, c)
		in.ids[text] = id
	}
	return id
}

func (in *interner) union(a, b int32) int32 {
	switch {
	case a == b || b == noneID || a == allID:
		return a
	case a == noneID || b == allID:
		return b
	}
	return in.remember(in.unions, a, b, Connections.Union)
}

func (in *interner) meet(a, b int32) int32 {
	switch {
	case a == b || b == allID || a == noneID:
		return a
	case a == allID || b == noneID:
		return b
	}
	return in.remember(in.meets, a, b, Connections.Intersect)
}

// minus is what is in a and not in b.
func (in *interner) minus(a, b int32) int32 {
	if a == b || a == noneID || b == allID {
		return noneID
	}
	if b == noneID {
		return a
	}
	key := [2]int32{a, b}
	id, ok := in.rests[key]
	if !ok {
		id = in.id(in.values[a].Minus(in.values[b]))
		in.rests[key] = id
	}
	return id
}

func (in *interner) remember(known map[[2]int32]int32, a, b int32, op func(a, b Connections) Connections) int32 {
	key := [2]int32{min(a, b), max(a, b)}
	id, ok := known[key]
	if !ok {
		id = in.id(op(in.values[a], in.values[b]))
		known[key] = id
	}
	return id
}

package explain

// ids of the two sets that most cells have.
const (
	noneID int32 = 0
	allID  int32 = 1
)

// interner gives equal Connections one number, so that a cell costs four bytes and two cells are combined by a
// look-up. Not for concurrent use.
type interner struct {
	work   *work
	values []Connections
	ids    map[string]int32
	meets  map[[2]int32]int32
	rests  map[[2]int32]int32 // of minus
}

func newInterner(w *work) *interner {
	in := &interner{work: w, ids: map[string]int32{}, meets: map[[2]int32]int32{}, rests: map[[2]int32]int32{}}
	in.id(Connections{})
	in.id(All())
	return in
}

func (in *interner) id(c Connections) int32 {
	key := shortKey(c.appendKey(nil))
	id, known := in.ids[key]
	if !known {
		in.work.hold(2*cellBytes + len(key) + spanBytes*c.size())
		id = int32(len(in.values))
		in.values = append(in.values, c)
		in.ids[key] = id
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
	in.count(a, b)
	return in.id(in.values[a].Union(in.values[b]))
}

func (in *interner) meet(a, b int32) int32 {
	switch {
	case a == b || b == allID || a == noneID:
		return a
	case a == allID || b == noneID:
		return b
	}
	return in.remember(in.meets, min(a, b), max(a, b), Connections.Intersect)
}

// minus returns the elements of a that are not in b.
func (in *interner) minus(a, b int32) int32 {
	switch {
	case a == b || a == noneID || b == allID:
		return noneID
	case b == noneID:
		return a
	}
	return in.remember(in.rests, a, b, Connections.Minus)
}

func (in *interner) remember(known map[[2]int32]int32, a, b int32, op func(a, b Connections) Connections) int32 {
	key := [2]int32{a, b}
	id, ok := known[key]
	if !ok && in.work.hold(cellBytes) {
		in.count(a, b)
		id = in.id(op(in.values[a], in.values[b]))
		known[key] = id
	}
	return id
}

// count counts the steps of an operation on two values.
func (in *interner) count(a, b int32) { in.work.step(in.values[a].size() + in.values[b].size()) }

package explain

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// Question is which part of the matrix is wanted.
type Question struct {
	// Namespaces are those of the pods; all if empty.
	Namespaces []string `json:"namespaces,omitempty"`
	// Port is the only one of interest: cells are Port or nothing. A Protocol of 0 asks for all.
	Protocol policy.Protocol `json:"protocol,omitempty"`
	Port     uint16          `json:"port,omitempty"`
	// Family is 4 or 6; 0 is what either allows.
	Family int `json:"family,omitempty"`
	// Outside adds groups of addresses that are no pod's, by the policies' ipBlocks.
	Outside bool `json:"outside,omitempty"`
	// Most is how many groups may be: with more, there are no Cells. 0: any number; cells are the square of it.
	Most int `json:"most,omitempty"`
}

// Group is a set of pods, or of addresses outside the cluster, that no policy distinguishes.
type Group struct {
	// Name is the pod's ID, "namespace label=value,label" for several pods (a label without a value stands for any
	// value), a CIDR, or "world" and "world IPv6" for the addresses of no narrower CIDR. It is unique in its matrix.
	Name      string            `json:"name"`
	Namespace string            `json:"namespace,omitempty"`
	Labels    map[string]string `json:"labels,omitempty"` // only those that policies distinguish
	Pods      []string          `json:"pods,omitempty"`   // namespace/name, sorted
	// CIDR has the addresses of a group outside: all that are no pod's and in no narrower group.
	CIDR netip.Prefix `json:"cidr,omitzero"`
	// Sample is one of these addresses.
	Sample netip.Addr `json:"sample,omitzero"`
}

// Matrix is who reaches whom.
type Matrix struct {
	Groups []Group `json:"groups"`
	// Values are the Connections that occur; Cells[from][to] is the index of one, by the indexes of Groups. A cell on
	// the diagonal speaks of two different pods of the group, or is "all" where it has but one: a pod always reaches
	// itself.
	Values []Connections `json:"values"`
	Cells  [][]int32     `json:"cells"`
	// Uneven are the cells [from, to] in which the families differ, if the question asked for no family.
	Uneven [][2]int `json:"uneven,omitempty"`
	// Apart are the pods that are no end of their own (hostNetwork, finished, without an address): namespace/name.
	Apart []string `json:"apart,omitempty"`
}

// Cell returns what group from may send to group to.
func (x *Matrix) Cell(from, to int) Connections { return x.Values[x.Cells[from][to]] }

// Find returns the index of the group that contains a pod (namespace/name), or -1.
func (x *Matrix) Find(pod string) int {
	return slices.IndexFunc(x.Groups, func(g Group) bool { return slices.Contains(g.Pods, pod) })
}

// Between returns what one pod may send to another, both namespace/name; ok is false if the matrix lacks one of them.
func (x *Matrix) Between(from, to string) (c Connections, ok bool) {
	i, j := x.Find(from), x.Find(to)
	if i < 0 || j < 0 {
		return Connections{}, false
	}
	if from == to {
		return All(), true
	}
	return x.Cell(i, j), true
}

// Matrix returns the Connections between all groups.
func (m *Model) Matrix(q Question) Matrix {
	x, _ := m.MatrixWithin(context.Background(), q, Bounds{})
	return x
}

// MatrixWithin computes a Matrix within a context and bounds. Its errors are the context's and ErrTooMany.
func (m *Model) MatrixWithin(ctx context.Context, q Question, bounds Bounds) (Matrix, error) {
	w := newWork(ctx, bounds)
	in := newInterner(w)
	var list groups
	x := Matrix{Groups: []Group{}, Cells: [][]int32{}}
	for _, e := range m.endpoints {
		switch {
		case len(q.Namespaces) > 0 && !slices.Contains(q.Namespaces, e.Namespace):
		case !m.addressable(e):
			x.Apart = append(x.Apart, e.ID())
		default:
			list.key = appendClass(m, list.key[:0], e, w)
			list.add(w, e, m)
		}
	}
	slices.Sort(x.Apart)
	list.finish()
	if q.Outside {
		list.addOutside(m)
	}
	x.Groups = append(x.Groups, list.groups...)
	if q.Most > 0 && len(x.Groups) > q.Most || w.err != nil {
		return x, w.err
	}
	four, six := cellsOf(m, in, list, q)
	if w.err == nil && (four != nil || six != nil) {
		x.Cells, x.Uneven = mergeFamilies(in, list, four, six)
	}
	if q.Protocol != 0 {
		restrict(in, x.Cells, Ports(q.Protocol, q.Port, q.Port))
	}
	if w.err != nil {
		return x, w.err
	}
	x.Values = compact(in, x.Cells)
	return x, nil
}

// cellsOf returns the cells of both families, nil for a family that was not requested or that no pod has.
func cellsOf(m *Model, in *interner, list groups, q Question) (four, six [][]int32) {
	if q.Family != 6 && list.any(0) {
		four = list.cells(m, in, false)
	}
	if q.Family != 4 && list.any(1) {
		six = list.cells(m, in, true)
	}
	return four, six
}

// unevenBytes is the memory of an entry of Matrix.Uneven.
const unevenBytes = 16

// mergeFamilies unites the cells of both families; uneven are those where both have an opinion and differ.
func mergeFamilies(in *interner, list groups, four, six [][]int32) (cells [][]int32, uneven [][2]int) {
	if four == nil {
		return six, nil
	}
	for from := range six {
		for to, id := range six[from] {
			if id != four[from][to] && list.both(from) && list.both(to) && in.work.hold(unevenBytes) {
				uneven = append(uneven, [2]int{from, to})
			}
			four[from][to] = in.union(four[from][to], id)
		}
	}
	return four, uneven
}

func restrict(in *interner, cells [][]int32, to Connections) {
	id := in.id(to)
	for _, row := range cells {
		for i := range row {
			row[i] = in.meet(row[i], id)
		}
	}
}

// compact renumbers the cells to those values that occur, in the order in which they do.
func compact(in *interner, cells [][]int32) (values []Connections) {
	values = []Connections{}
	renumbered := slices.Repeat([]int32{-1}, len(in.values))
	for _, row := range cells {
		for i, id := range row {
			if renumbered[id] < 0 {
				renumbered[id] = int32(len(values))
				values = append(values, in.values[id])
			}
			row[i] = renumbered[id]
		}
	}
	return values
}

// groups are made of classes of pods; each has a representative in each model.
type groups struct {
	groups  []Group
	index   map[string]int
	key     []byte               // scratch: the class of the next pod
	members [][]*policy.Endpoint // the first is the representative
	outside []netip.Addr         // a representative, for groups outside
	has     [][2]bool            // an address of each family, in both worlds where there are two
	named   *facts               // by which groups are named; nil: by those of the model
}

// podBytes and groupBytes are the memory of a pod in a group, and of a group without them.
const (
	podBytes   = 80
	groupBytes = 400
)

// add puts a pod in the group of its class, which is the key.
func (l *groups) add(w *work, e *policy.Endpoint, m *Model) {
	if l.index == nil {
		l.index = map[string]int{}
	}
	w.hold(podBytes)
	i, known := l.index[string(l.key)]
	if !known {
		w.hold(groupBytes + len(l.key))
		i = len(l.groups)
		l.index[string(l.key)] = i
		facts := &m.facts
		if l.named != nil {
			facts = l.named
		}
		labels, text := facts.distinguished(e)
		l.groups = append(l.groups,
			Group{Name: strings.TrimSpace(e.Namespace + " " + text), Namespace: e.Namespace, Labels: labels})
		l.members = append(l.members, nil)
		l.outside = append(l.outside, netip.Addr{})
		l.has = append(l.has, m.has(e))
	}
	l.members[i] = append(l.members[i], e)
	l.groups[i].Pods = append(l.groups[i].Pods, e.ID())
}

func (l *groups) any(family int) bool {
	return slices.ContainsFunc(l.has, func(has [2]bool) bool { return has[family] })
}

func (l *groups) both(i int) bool { return l.has[i] == [2]bool{true, true} }

// finish names the groups and sorts them by name.
func (l *groups) finish() {
	for i := range l.groups {
		g := &l.groups[i]
		slices.Sort(g.Pods)
		if len(g.Pods) == 1 {
			g.Name = g.Pods[0]
		}
	}
	order := make([]int, len(l.groups))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return compareGroups(l.groups[a], l.groups[b]) })
	l.groups, l.members, l.has = permute(l.groups, order), permute(l.members, order), permute(l.has, order)
	for i, names := 0, map[string]int{}; i < len(l.groups); i++ {
		g := &l.groups[i]
		if names[g.Name]++; names[g.Name] > 1 {
			g.Name += " #" + strconv.Itoa(names[g.Name])
		}
	}
}

func compareGroups(a, b Group) int {
	return slices.Compare([]string{a.Namespace, a.Name, a.Pods[0]}, []string{b.Namespace, b.Name, b.Pods[0]})
}

func permute[T any](list []T, order []int) []T {
	result := make([]T, len(list))
	for i, from := range order {
		result[i] = list[from]
	}
	return result
}

// addOutside appends the groups of addresses that are no pod's.
func (l *groups) addOutside(models ...*Model) {
	for _, o := range outside(models...) {
		l.groups = append(l.groups, Group{Name: o.name(), CIDR: o.cidr, Sample: o.sample})
		l.members = append(l.members, nil)
		l.outside = append(l.outside, o.sample)
		l.has = append(l.has, [2]bool{o.sample.Is4(), o.sample.Is6()})
	}
}

// ends returns the representatives of the groups in a family; the groups' pods must be those of the model.
func (l *groups) ends(m *Model, six bool) []end {
	list := make([]end, len(l.groups))
	family := 0
	if six {
		family = 1
	}
	for i, members := range l.members {
		switch {
		case !l.has[i][family]:
		case len(members) == 0:
			list[i] = end{nil, l.outside[i]}
		default:
			list[i] = end{members[0], m.address(members[0], six)}
		}
	}
	return list
}

// cells returns the cells of one family. The diagonal of a group of one pod is that pod with itself.
func (l *groups) cells(m *Model, in *interner, six bool) [][]int32 {
	cells := newBoard(in.work, m, in, l.ends(m, six)).cells()
	if cells == nil {
		return nil
	}
	for i := range l.members {
		if l.alone(i) {
			cells[i][i] = allID
		}
	}
	return cells
}

// alone reports whether a group has exactly one pod.
func (l *groups) alone(i int) bool { return len(l.members[i]) == 1 }

// String returns a description of the group for messages.
func (g Group) String() string {
	if len(g.Pods) > 1 {
		return fmt.Sprintf("%s (%d pods)", g.Name, len(g.Pods))
	}
	return g.Name
}

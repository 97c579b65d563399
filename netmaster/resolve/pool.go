package resolve

const (
	chunkBits  = 6
	chunkSize  = 1 << chunkBits
	slabChunks = 16 // that are made at a time, once there are as many
)

// pool keeps values of one type at places that stay, so that four bytes stand for a pointer. ID 0 is none. The place of a
// value that was given back goes to a later one.
type pool[ID ~uint32, T any] struct {
	chunks []*[chunkSize]T
	spare  [][chunkSize]T
	free   []ID
	last   ID // the highest that was ever taken
}

func (p *pool[ID, T]) at(id ID) *T { return &p.chunks[id>>chunkBits][id&(chunkSize-1)] }

// take makes a zero value.
func (p *pool[ID, T]) take() (ID, *T) {
	if n := len(p.free); n > 0 {
		id := p.free[n-1]
		p.free = p.free[:n-1]
		return id, p.at(id)
	}
	p.last++
	if int(p.last>>chunkBits) == len(p.chunks) {
		p.chunks = append(p.chunks, p.chunk())
	}
	return p.last, p.at(p.last)
}

func (p *pool[ID, T]) chunk() *[chunkSize]T {
	if len(p.chunks) < slabChunks {
		return new([chunkSize]T)
	}
	if len(p.spare) == 0 {
		p.spare = make([][chunkSize]T, slabChunks)
	}
	out := &p.spare[0]
	p.spare = p.spare[1:]
	return out
}

func (p *pool[ID, T]) give(id ID) {
	var zero T
	*p.at(id) = zero
	p.free = append(p.free, id)
}

func (p *pool[ID, T]) len() int { return int(p.last) - len(p.free) }

package resolve

const (
	chunkBits  = 6
	chunkSize  = 1 << chunkBits
	slabChunks = 16 // allocated at a time, once there are as many
)

// pool allocates values of one type and identifies them by four-byte IDs instead of pointers. Values do not move. ID
// 0 is invalid. IDs of freed values are reused.
type pool[ID ~uint32, T any] struct {
	chunks []*[chunkSize]T
	spare  [][chunkSize]T
	free   []ID
	last   ID // highest ID that was ever allocated
}

func (p *pool[ID, T]) at(id ID) *T { return &p.chunks[id>>chunkBits][id&(chunkSize-1)] }

// take allocates a zero value.
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

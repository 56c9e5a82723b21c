package read

// due is the attempts that are to be made, the oldest first. It is guarded by Reader.mu.
type due struct {
	list []Attempt
	at   int // the first that nobody has taken
}

// add puts an attempt last. The room of those that were taken is used again: a queue that is never empty does not grow.
func (d *due) add(a Attempt) {
	if len(d.list) == cap(d.list) && d.at > len(d.list)/2 {
		n := copy(d.list, d.list[d.at:])
		clear(d.list[n:])
		d.list, d.at = d.list[:n], 0
	}
	d.list = append(d.list, a)
}

// len returns how many attempts nobody has taken.
func (d *due) len() int { return len(d.list) - d.at }

// take returns the oldest attempt; the zero Attempt if there is none.
func (d *due) take() (a Attempt) {
	if d.at < len(d.list) {
		a, d.list[d.at] = d.list[d.at], Attempt{}
		d.at++
	}
	if d.at == len(d.list) {
		d.list, d.at = d.list[:0], 0
	}
	return a
}

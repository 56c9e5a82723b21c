package lookahead

// wholeKey is what jobs have in common that read the same blobs, in whatever order.
type wholeKey struct {
	group  string
	number uint32 // the spill's of the snapshot
}

// noteWhole notes that the spill has every blob of a job. removed is how many it had removed when the first of them was
// looked for. Until it removes another one, nothing is looked for: a row costs more than a microsecond of a processor,
// which streams may need.
func (a *Ahead) noteWhole(l *running, removed int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.whole) >= maxJobs {
		clear(a.whole) // what is true of them will be found out again
	}
	a.whole[wholeKey{l.group, l.number}] = removed
}

// wholeLocked reports whether the spill, which has removed so many blobs, has every one of a job as far as is known.
func (a *Ahead) wholeLocked(l *running, removed int64) bool {
	then, known := a.whole[wholeKey{l.group, l.number}]
	return known && then == removed
}

package lookahead

// Wants is how many bytes of blobs the jobs that are known read, by snapshot: of several on one, the most. Jobs of a
// part of a snapshot count with that part.
func (a *Ahead) Wants() map[string]int64 {
	wants := map[string]int64{}
	if a == nil {
		return wants
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, l := range a.jobs {
		name := a.opts.Cache.DatasetName(l.number)
		wants[name] = max(wants[name], l.mean*l.order.Rows())
	}
	return wants
}

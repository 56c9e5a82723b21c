package admission

// Buckets is the number of buckets.
func (p *Paces) Buckets() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.buckets)
}

package admission

// Buckets is how many there are.
func (p *Paces) Buckets() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.buckets)
}

package fetch

// LimitAhead has a stream plan fewer rows than it may, so that a test need not
// have as many.
func LimitAhead(s *Stream, rows int64) {
	s.engine.mu.Lock()
	defer s.engine.mu.Unlock()
	s.ahead.most = rows
}

package store

// As returns the first of a store and those below it that is a T: what a store can do beside the contract is found
// whatever it is wrapped in. A store that is wrapped around another says so by a method Below.
func As[T any](s Store) (T, bool) {
	for {
		if t, ok := s.(T); ok {
			return t, true
		}
		around, ok := s.(interface{ Below() Store })
		if !ok {
			var none T
			return none, false
		}
		s = around.Below()
	}
}

package segment

import (
	"sync/atomic"

	"bowstring/schema"
)

const (
	// presentRun is after how many reads in a row that found their pages in memory only some are looked at.
	presentRun = 4096
	// presentEach is which of them are.
	presentEach = 8
)

// presence knows whether pages are likely to be in memory. To ask the kernel costs a system call a blob, a tenth of what
// serving one from memory takes. Where all of the last thousands were there, it asks for one blob in eight, until one is
// not there: the kernel takes pages by the many. A page that is taken for present and is not costs a page fault, which
// holds up one of Go's processors for as long as the disk takes; no byte depends on it. It is safe for concurrent use.
type presence struct{ run atomic.Int64 }

// holds reports whether the pages of b are in memory, as far as is known.
func (p *presence) holds(b []byte) bool {
	if n := p.run.Add(1); n > presentRun && n%presentEach != 0 {
		return true
	}
	if schema.Resident(b) {
		return true
	}
	p.run.Store(0)
	return false
}

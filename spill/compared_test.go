package spill

import "math"

// LRU evicts what was used the longest time ago.
func LRU() Policy { return lru{} }

type lru struct{}

func (lru) Name() string                 { return "lru" }
func (lru) Worth(e *Entry, _ Time) Worth { return Worth{Value: float64(e.Used)} }
func (lru) Admit(Worth, Worth) bool      { return true }

// FIFO evicts what was stored the longest time ago.
func FIFO() Policy { return fifo{} }

type fifo struct{}

func (fifo) Name() string                 { return "fifo" }
func (fifo) Worth(e *Entry, _ Time) Worth { return Worth{Value: float64(e.Added)} }
func (fifo) Admit(Worth, Worth) bool      { return true }

// Static keeps what was stored first, and stores nothing more once it is full.
func Static() Policy { return static{} }

type static struct{}

func (static) Name() string             { return "static" }
func (static) Worth(*Entry, Time) Worth { return Worth{Value: math.Inf(1)} }
func (static) Admit(Worth, Worth) bool  { return false }

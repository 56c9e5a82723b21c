package lineage

import "bowstring/schema"

// Piece is a part of what a stream has handed out.
type Piece struct {
	Head   Head
	Rows   int64 // handed out
	Faults []Fault

	steps []moved
}

// moved is a batch, and rows in order after it.
type moved struct {
	runs  []byte // nil for none
	count int64
}

// Range is rows of a piece by their numbers, [From, To), in the plan's order from the step and row of its ticket.
type Range struct{ From, To int64 }

// Served returns which rows were handed out as those from from on and before to: in their order.
func (p *Piece) Served(from, to int64) ([]Range, error) {
	to = min(to, p.Rows)
	if mode, _ := p.Head.Ticket.OrderOf(); mode == schema.OrderStrict {
		if from >= to {
			return nil, nil
		}
		return []Range{{from, to}}, nil
	}
	rest := newUndone(p.Head.Ticket.Served)
	var list []Range
	at := int64(0) // rows handed out
	emit := func(a, b int64) {
		lo, hi := max(from, at), min(to, at+b-a)
		if lo < hi {
			r := Range{a + lo - at, a + hi - at}
			if n := len(list); n > 0 && list[n-1].To == r.From {
				list[n-1].To = r.To
			} else {
				list = append(list, r)
			}
		}
		at += b - a
	}
	for i := range p.steps {
		if at >= to {
			break
		}
		if p.steps[i].runs != nil {
			runs, err := decodeRuns(p.steps[i].runs)
			if err != nil {
				return nil, err
			}
			rest.apply(runs, emit)
		}
		rest.apply([]run{{0, p.steps[i].count}}, emit)
	}
	return list, nil
}

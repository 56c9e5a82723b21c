package peer

import (
	"testing"
	"time"
)

// A side that answers each ping is never gone, however late the checks are. A side that
// does not answer is gone after a ping.
func TestQuietIsAskedFirst(t *testing.T) {
	const answer = time.Millisecond
	begin := time.Now()
	for _, late := range []time.Duration{0, 2 * answer, 4 * time.Second} {
		now, heard := begin, begin
		q := quiet{looked: begin}
		asked := 0
		for i := range 20 {
			now = begin.Add(time.Duration(i+1)*keepaliveAnswer + late*time.Duration(i%2))
			switch q.check(now, heard) {
			case doubted:
				asked, heard = asked+1, now.Add(answer)
			case gone, excused:
				t.Fatalf("checks late by %s: check %d cancels a peer that answers within %s", late, i, answer)
			case lively:
			}
		}
		if asked == 0 {
			t.Errorf("looks late by %s: nothing was asked for %s", late, now.Sub(begin))
		}
		end, doubts := now, 0
		for q.check(now, heard) != gone {
			if now = now.Add(keepaliveAnswer); q.asked.After(end) {
				doubts++
			}
			if now.Sub(heard) > 2*keepaliveTime+keepaliveAnswer {
				t.Fatalf("looks late by %s: who has said nothing for %s is not gone", late, now.Sub(heard))
			}
		}
		if doubts == 0 {
			t.Errorf("looks late by %s: it is gone and was not asked", late)
		}
	}
	q := quiet{looked: begin}
	if got := q.check(begin.Add(keepaliveTime+keepaliveAnswer), begin); got != excused {
		t.Errorf("after a time in which nothing ran: %d, want that no peer is blamed", got)
	}
}

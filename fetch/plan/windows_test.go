package plan

import "testing"

// TestKeptWindows holds that a window which is in use is put in order once, however many others readers that are far
// apart walk through, and that no more are kept than are counted.
func TestKeptWindows(t *testing.T) {
	for rows, most := range map[int64]int{MaxWindowRows: 16, MaxWindowRows / 4: 64, 1000: 256, 10: 256} {
		b, err := NewBuckets(make(Lengths, 600*rows), nil, rows)
		if err != nil {
			t.Fatal(err)
		}
		p, err := New(Config{Selection: All(600 * rows), Batch: rows, World: 1, Buckets: b})
		if err != nil {
			t.Fatal(err)
		}
		near, far := &b.window(p, 0)[0], &b.window(p, 599)[0]
		for window := range int64(600) {
			if window > 2*int64(most) {
				break
			}
			b.window(p, window)
			if &b.window(p, 0)[0] != near || &b.window(p, 599)[0] != far {
				t.Fatalf("of %d rows: a window in use was put in order again after %d others", rows, window)
			}
		}
		if len(b.kept) != most || BucketsBytes(rows) < int64(4*most)*rows {
			t.Errorf("of %d rows %d windows are kept, want %d; %d bytes are counted", rows, len(b.kept), most,
				BucketsBytes(rows))
		}
	}
}

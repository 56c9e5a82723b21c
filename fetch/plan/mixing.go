package plan

// MixWindow is how many samples in a row are looked at together to say how well an order mixes: 20 batches of 256.
const MixWindow = 5120

// Windows returns the positions of some runs of samples in a plan's order, spread evenly
// over it. A run has at most MixWindow samples, and at most an eighth of the plan. At most
// most samples of each run are returned, spread evenly over the run.
func Windows(p *Plan, windows, most int64) (positions [][]int64, run int64) {
	n := p.Rows()
	run = min(MixWindow, n/8)
	if run == 0 {
		return nil, 0
	}
	take := min(run, most)
	for w := range windows {
		start := (n - run) * w / max(windows-1, 1)
		list := make([]int64, take)
		for i := range list {
			list[i] = p.Position(start + int64(i)*run/take)
		}
		positions = append(positions, list)
	}
	return positions, run
}

// ChiSquare compares the classes of runs with each other: chi-square of the table of runs
// and classes, per degree of freedom. It is 1 for a uniformly random order. If each run has
// one class, it is about the length of a run. ok is false with fewer than two runs or two
// classes.
func ChiSquare(runs [][]int) (perDF float64, ok bool) {
	total, all := map[int]float64{}, 0.0
	counts := make([]map[int]float64, len(runs))
	for i, run := range runs {
		counts[i] = map[int]float64{}
		for _, class := range run {
			counts[i][class]++
			total[class]++
		}
		all += float64(len(run))
	}
	if len(runs) < 2 || len(total) < 2 {
		return 0, false
	}
	// A class that is not in a run has its expected count as its term: the terms of all classes there add up with that.
	var sum float64
	for i, run := range runs {
		n := float64(len(run))
		missing := n
		for class, got := range counts[i] {
			want := n * total[class] / all
			sum += (got - want) * (got - want) / want
			missing -= want
		}
		sum += missing
	}
	return sum / float64((len(runs)-1)*(len(total)-1)), true
}

package predict

// HiPC are the parameters of Yang and Cong's model ("Accelerating Data Loading in Deep Neural
// Network Training", HiPC 2019, section on the analytical model), in samples and samples a
// second. They know one store, learners that each train and load, and caches that hold a
// share of the dataset.
type HiPC struct {
	D  float64 // samples of the dataset
	R  float64 // of the store, for all learners together
	U  float64 // that a learner loads: decodes, and puts batches together
	V  float64 // that a learner trains
	Rc float64 // from caches of other learners, all together
	Rb float64 // that are moved to balance batches, all together
	A  float64 // share of the dataset that the caches hold, theirs is α
	B  float64 // share of the samples that is moved to balance batches, theirs is β
}

// Train is how long p learners train an epoch, in seconds.
func (h HiPC) Train(p float64) float64 { return over(h.D, p*h.V) }

// Load is how long p learners load an epoch from the store, in seconds.
func (h HiPC) Load(p float64) float64 { return over(h.D, h.R) + over(h.D, p*h.U) }

// LoadDistributed is Load from caches that hold the dataset together, each sample on one
// learner, whoever wants it.
func (h HiPC) LoadDistributed(p float64) float64 {
	return (1-h.A)*over(h.D, h.R) + h.A*over(h.D, h.Rc)*(p-1)/p + over(h.D, p*h.U)
}

// LoadLocal is Load where learners get what their own caches hold, but for what balances
// batches.
func (h HiPC) LoadLocal(p float64) float64 {
	return (1-h.A)*over(h.D, h.R) + h.A*h.B*over(h.D, h.Rb) + over(h.D, p*h.U)
}

// Epoch is how long an epoch takes of which loading takes that long: training hides it.
func (h HiPC) Epoch(p, load float64) float64 { return max(h.Train(p), load) }

// Speedup is how many times faster p learners load by locality.
func (h HiPC) Speedup(p float64) float64 { return h.Load(p) / h.LoadLocal(p) }

// MuMMI are the parameters of the published figures for the dataset MuMMI, by nodes, as far
// as these determine them: two ratios, R/U and β·R/Rb. The others are set to one.
var MuMMI = HiPC{D: 1, R: 1, U: 1 / 0.941, V: 1, Rc: 1, Rb: 1, A: 1, B: 0.00104}

// HiPCFigure is a published speedup of loading by locality.
type HiPCFigure struct {
	Nodes   float64
	Speedup float64
}

// HiPCMuMMI are the figures that the paper gives for MuMMI.
var HiPCMuMMI = []HiPCFigure{{16, 18}, {32, 35}, {64, 70}, {128, 120}}

package predict

// HiPC holds the parameters of Yang and Cong's model ("Accelerating Data Loading in Deep Neural Network
// Training", HiPC 2019, section on the analytical model), in samples and samples per second. The model has one
// store, learners that each train and load, and caches that hold a share of the dataset.
type HiPC struct {
	D  float64 // samples of the dataset
	R  float64 // store, all learners together
	U  float64 // loading by one learner: decoding and assembling batches
	V  float64 // training by one learner
	Rc float64 // reads from other learners' caches, all together
	Rb float64 // samples moved to balance batches, all together
	A  float64 // share of the dataset that caches hold; α in the paper
	B  float64 // share of the samples moved to balance batches; β in the paper
}

// Train is how long p learners train for an epoch, in seconds.
func (h HiPC) Train(p float64) float64 { return over(h.D, p*h.V) }

// Load is how long p learners take to load an epoch from the store, in seconds.
func (h HiPC) Load(p float64) float64 { return over(h.D, h.R) + over(h.D, p*h.U) }

// LoadDistributed is Load with caches that hold the dataset together, each sample on one learner, and samples
// given to any learner.
func (h HiPC) LoadDistributed(p float64) float64 {
	return (1-h.A)*over(h.D, h.R) + h.A*over(h.D, h.Rc)*(p-1)/p + over(h.D, p*h.U)
}

// LoadLocal is Load where each learner gets the samples of its own cache, except those moved to balance
// batches.
func (h HiPC) LoadLocal(p float64) float64 {
	return (1-h.A)*over(h.D, h.R) + h.A*h.B*over(h.D, h.Rb) + over(h.D, p*h.U)
}

// Epoch is how long an epoch takes whose loading takes load: training and loading overlap.
func (h HiPC) Epoch(p, load float64) float64 { return max(h.Train(p), load) }

// Speedup is Load / LoadLocal.
func (h HiPC) Speedup(p float64) float64 { return h.Load(p) / h.LoadLocal(p) }

// MuMMI holds the parameters of the published figures for the dataset MuMMI, by number of nodes. The figures
// determine only two ratios, R/U and β·R/Rb; the other parameters are 1.
var MuMMI = HiPC{D: 1, R: 1, U: 1 / 0.941, V: 1, Rc: 1, Rb: 1, A: 1, B: 0.00104}

// HiPCFigure is a published speedup from loading by locality.
type HiPCFigure struct {
	Nodes   float64
	Speedup float64
}

// HiPCMuMMI holds the paper's figures for MuMMI.
var HiPCMuMMI = []HiPCFigure{{16, 18}, {32, 35}, {64, 70}, {128, 120}}

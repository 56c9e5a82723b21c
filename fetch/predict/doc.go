// Package predict says how fast a job will be served, what will limit it and how long it
// will wait, from measured rates and the job's figures. It is a model in closed form: pure
// arithmetic, no I/O, no clock, no goroutine. What measures the rates and what runs the
// job lie elsewhere.
//
// The model is that of Yang and Cong ("Accelerating Data Loading in Deep Neural Network
// Training", HiPC 2019), whose own formulas are in hipc.go: parts that work beside one
// another take as long as the slowest of them, and training hides what loading takes as far
// as it takes as long itself. To it are added what a server of Bowstring has: a bounded
// window over a store of some latency (Little's law), caches that hold a part of the dataset,
// and nodes that own it together.
package predict

// Package upcoming knows the running jobs. It publishes to the spill what they use next, and reads those blobs into
// the spill before they are needed: while streams do not use the path to the store, and, with [Jobs.Warm], before a
// job begins.
//
// It knows nothing of windows, batches or turns. Begin reading at [Jobs] and running; fill.go has the fillers.
package upcoming

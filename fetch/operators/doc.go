// Package operators makes of samples what a request wants them to become: it compiles
// lists of steps into programs, and runs these between the arrival of a blob and the
// batch that it goes into.
//
// A [Set] is the compiled operators of a request. A [Stage] runs them: as many cells at
// once as there are processors, shared out between tenants by weight and between the
// jobs of one, in memory that the ledger has counted in. What a cell becomes lies in a
// buffer that goes out as it is.
//
// A cell that cannot be made is a fault of that cell: damaged bytes, a size that is
// refused before it is allocated, a panic of the program. Whole results of programs that
// draw nothing are kept in the spill, where that pays.
//
// What steps there are is the business of the packages below, one for each kind of
// samples; [Kinds] lists them. The package knows neither plans, streams nor how blobs
// are read.
package operators

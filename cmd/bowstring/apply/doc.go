// Package apply runs the operators of a request where the samples are used: in a process
// beside the client's, which hands it blobs over a pipe and gets cells back.
//
// It is a process, and no library in the client's own, for three reasons. Trainers fork, and
// a runtime with threads does not survive that. Decoders read hostile bytes, and what ends
// them must not end a training job. And the program is static, so that it is in every
// package for every processor without a C compiler.
//
// What lives here: the frames on the pipe, and the order of batches. How cells are made is
// fetch/operators; who asks for it is the Python package.
package apply

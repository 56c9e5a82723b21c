// Package manifest gives the rows of snapshots to those who need them: it reads the
// pages of manifests when they are wanted, several at once, and keeps them within a
// bound of memory. A small manifest is read whole when it is opened, and its pages
// stay.
//
// What a page looks like is package schema's; how its bytes are found, its caller's.
package manifest

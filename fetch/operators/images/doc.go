// Package images compiles lists of operators on images into programs: decoding,
// geometry, colours and the form of the tensor that comes out. Names, parameters and
// defaults are those of torchvision.transforms.v2; pixels are those that torchvision
// gives for images of Pillow 12.1.
//
// A program draws before it decodes, decodes no more than a crop needs, and resizes,
// mirrors, normalises and lays out in one pass into the result's memory. Crops, one
// resize and mirroring are one step of work, whatever the number of operators.
//
// Here is what the operators are. Files are read in codec and jpeg, sizes changed in
// resample. Engines, requests and schemas are not here.
package images

// ContractVersion names what the bytes of a result depend on besides the canonical
// steps and the input. It changes whenever any result does.
const ContractVersion = "images/2"

package fetch

import (
	"bowstring/fetch/operators"
	"bowstring/fetch/operators/audio"
	"bowstring/fetch/operators/images"
)

// OperatorKinds are the kinds of samples that there are operators for.
func OperatorKinds() operators.Kinds {
	return operators.Kinds{
		"image": {Contract: operators.Always(images.ContractVersion), Operators: images.Names(), Compile: images.Compile,
			Follow: images.CompileMask},
		"audio": {Contract: audio.Contract, Operators: audio.Names(), Compile: audio.Compile},
	}
}

// OperatorEngines names what decodes files, by kind of samples.
func OperatorEngines() map[string]string {
	return map[string]string{"image": images.Engine(), "audio": audio.Engine()}
}

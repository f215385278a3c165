// Reads CDI specs with the specification's own library, as container runtimes do, and prints one
// line for each: "accepted FILE VERSION DEVICE..." or "refused FILE: REASON". Exit code 1 means that
// a file was refused. scripts/cdi-judge compiles and runs it.
package main

import (
	"fmt"
	"os"

	"tags.cncf.io/container-device-interface/pkg/cdi"
)

func main() {
	code := 0
	for _, file := range os.Args[1:] {
		if line, err := read(file); err != nil {
			code = 1
			fmt.Printf("refused %s: %v\n", file, err)
		} else {
			fmt.Println("accepted " + line)
		}
	}
	os.Exit(code)
}

// read returns the file with the spec's version and its devices in the order of their file.
func read(file string) (string, error) {
	spec, err := cdi.ReadSpec(file, 0)
	if err != nil {
		return "", err
	}
	line := file + " " + spec.Version
	for _, device := range spec.Devices {
		line += " " + spec.Kind + "=" + device.Name
	}
	return line, nil
}

// cdivalidator says for each spec file whether the official CDI library takes it: "ok FILE", or
// "bad FILE: reason".
package main

import (
	"fmt"
	"os"
	"strings"

	"tags.cncf.io/container-device-interface/pkg/cdi"
)

// read turns a panic of the library (a device node that is null) into an error.
func read(path string) (err error) {
	defer func() {
		if reason := recover(); reason != nil {
			err = fmt.Errorf("panic: %v", reason)
		}
	}()
	_, err = cdi.ReadSpec(path, 0)
	return err
}

func main() {
	for _, path := range os.Args[1:] {
		if err := read(path); err != nil {
			fmt.Printf("bad %s: %s\n", path, strings.ReplaceAll(err.Error(), "\n", " "))
		} else {
			fmt.Printf("ok %s\n", path)
		}
	}
}

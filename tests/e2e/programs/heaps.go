// heaps COUNT: a map of Go's own heap with so many texts, and as many blocks of C's malloc, both checked.
package main

// #include <stdlib.h>
// #include <string.h>
import "C"

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"unsafe"
)

const blockBytes = 512

func textOf(i int) string { return strings.Repeat(strconv.Itoa(i*7919), 40) }

func main() {
	count, err := strconv.Atoi(os.Args[1])
	if err != nil {
		panic(err)
	}
	texts := map[int]string{}
	blocks := make([]unsafe.Pointer, count)
	for i := 0; i < count; i++ {
		texts[i] = textOf(i)
		blocks[i] = C.malloc(blockBytes)
		C.memset(blocks[i], C.int(i%251), blockBytes)
	}
	for i := 0; i < count; i += 3 {
		delete(texts, i)
	}
	runtime.GC()
	for i := 0; i < count; i++ {
		if text, there := texts[i]; there != (i%3 != 0) || there && text != textOf(i) {
			panic(fmt.Sprint("text ", i, " is ", text))
		}
		for place, value := range unsafe.Slice((*byte)(blocks[i]), blockBytes) {
			if int(value) != i%251 {
				panic(fmt.Sprint("block ", i, " byte ", place, " is ", value))
			}
		}
		C.free(blocks[i])
	}
	fmt.Println(len(texts), "texts and", count, "blocks are right")
}

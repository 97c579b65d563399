// Package drops keeps what a node has denied of late: what the switch tells of, a few packets a second (pipeline.Meters), summed up by
// who wanted to reach whom. It is bounded, whatever pods send: in what it takes in by the switch's meters, in what it keeps by a number
// of records for each pod and for all.
//
// What policies in a dry run would have denied is another Collector's (Config.Audit). It logs what begins.
package drops

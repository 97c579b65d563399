// Package keyed keeps a set of keys with a value each equal at a sender and many receivers. The sender has a Source; a
// receiver has a Set. A Delta brings a receiver from one state to another and carries the sum of what the receiver
// holds then: a receiver that has another sum requests the whole. After a reconnection the receiver sends the sums of
// its buckets, and is sent the buckets that differ. Messages are the caller's: see internal/wire and netmaster/feed.
package keyed

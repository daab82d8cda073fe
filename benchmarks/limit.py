"""Runs the yardstick of `alphorn bench messages` by itself; alphorn/testing/message_bench/limit.py is its source.

python benchmarks/limit.py --messages 3000000 --size 100 --batch 450 --window 64     # throughput
python benchmarks/limit.py --messages 5000 --size 100 --batch 1 --window 1           # one message in flight
"""

from alphorn.testing.message_bench.limit import main

if __name__ == "__main__":
    main()
